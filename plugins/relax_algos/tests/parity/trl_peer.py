"""Losses of TRL's trainers, on tensors alone: the unbound methods on a stand-in for the trainer.

Each class is one trainer's loss; its fields are the trainer's own options, with the defaults of its configuration.
"""

from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from plugins.relax_algos.tests.parity.update import Update
from relax_core.api.rows import StopReason

ONE_PROCESS = SimpleNamespace(
    num_processes=1,
    device=torch.device("cpu"),
    gather=lambda value: value,
    gather_for_metrics=lambda value: value,
    reduce=lambda value, reduction: value,
    sync_gradients=True,
)


@dataclass(frozen=True)
class GRPOTrainerLoss:
    """``GRPOTrainer``."""

    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    off_policy_mask_threshold: float | None = None
    entropy_coef: float = 0.0
    max_completion_length: int = 512
    mask_truncated_completions: bool = False

    def __call__(self, update: Update) -> Tensor:
        """The loss of the update."""
        from trl import GRPOTrainer

        mask = update.mask
        if self.mask_truncated_completions:
            mask = mask & (update["stop_reason"] != StopReason.LENGTH)[:, None]
        ids = torch.zeros_like(mask, dtype=torch.int64)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1] + 1,
            "completion_ids": ids,
            "completion_mask": mask.long(),
            "num_items_in_batch": mask.sum(),
            "advantages": update["advantages"],
            "old_per_token_logps": update["old_logprobs"],
            "ref_per_token_logps": update["ref_logprobs"],
            "sampling_per_token_logps": update["rollout_logprobs"],
        }
        return GRPOTrainer._compute_loss(self._trainer(update), None, inputs)

    def _trainer(self, update: Update) -> Any:
        from trl import GRPOTrainer

        return SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (update["logprobs"], update["entropy"], None),
            get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
            args=SimpleNamespace(
                delta=self.delta,
                use_bias_correction_kl=self.use_bias_correction_kl,
                sapo_temperature_pos=1.0,
                sapo_temperature_neg=1.05,
                steps_per_generation=1,
            ),
            loss_type=self.loss_type,
            importance_sampling_level=self.importance_sampling_level,
            epsilon_low=self.epsilon,
            epsilon_high=self.epsilon if self.epsilon_high is None else self.epsilon_high,
            beta=self.beta,
            off_policy_mask_threshold=self.off_policy_mask_threshold,
            max_completion_length=self.max_completion_length,
            entropy_coef=self.entropy_coef,
            _entropy_bonus_enabled=self.entropy_coef != 0,
            use_adaptive_entropy=False,
            top_entropy_quantile=1.0,
            aux_loss_enabled=False,
            use_vllm=False,
            current_gradient_accumulation_steps=1,
            model=SimpleNamespace(training=True),
            accelerator=ONE_PROCESS,
            _metrics=defaultdict(lambda: defaultdict(list)),
        )


@dataclass(frozen=True)
class RLOOTrainerLoss:
    """``RLOOTrainer``."""

    epsilon: float = 0.2
    epsilon_high: float | None = None

    def __call__(self, update: Update) -> Tensor:
        """The loss of the update."""
        from trl import RLOOTrainer

        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (update["logprobs"], update["entropy"], None),
            epsilon_low=self.epsilon,
            epsilon_high=self.epsilon if self.epsilon_high is None else self.epsilon_high,
            aux_loss_enabled=False,
            model=SimpleNamespace(training=True),
            accelerator=ONE_PROCESS,
            _metrics=defaultdict(lambda: defaultdict(list)),
        )
        ids = torch.zeros_like(update.mask, dtype=torch.int64)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1] + 1,
            "completion_ids": ids,
            "completion_mask": update.mask.long(),
            "advantages": update["advantages"],
            "old_logps": (update["old_logprobs"] * update.mask).sum(1),
        }
        return RLOOTrainer._compute_loss(trainer, None, inputs)


@dataclass(frozen=True)
class DPOTrainerLoss:
    """``DPOTrainer``, given the pairs of an update."""

    loss_type: str = "sigmoid"
    beta: float = 0.1

    def __call__(self, update: Update) -> Tensor:
        """The loss of the update."""
        from trl import DPOTrainer

        chosen, rejected = (update["ref_logprobs"] * update.mask).sum(1).chunk(2)
        mask = torch.nn.functional.pad(update.mask, (1, 0)).long()  # the prompt's only token
        inputs = {
            "input_ids": torch.zeros_like(mask),
            "attention_mask": torch.ones_like(mask),
            "completion_mask": mask,
            "ref_chosen_logps": chosen,
            "ref_rejected_logps": rejected,
        }
        return DPOTrainer._compute_loss(self._trainer(), lambda **_: _outputs(update), inputs, False)

    def _trainer(self) -> Any:
        return SimpleNamespace(
            loss_types=[self.loss_type],
            loss_weights=[1.0],
            beta=self.beta,
            f_divergence_type="reverse_kl",
            precompute_ref_logps=True,
            ld_alpha=None,
            use_weighting=False,
            aux_loss_enabled=False,
            model=SimpleNamespace(training=True),
            accelerator=ONE_PROCESS,
            _metrics=defaultdict(lambda: defaultdict(list)),
            _total_train_tokens=0,
            _tp_size=1,
        )


def _outputs(update: Update) -> Any:
    """What TRL's fused head gives: 0 where there is no label. All but the first is for TRL's metrics."""
    zeros = torch.zeros_like(update["logprobs"])
    return SimpleNamespace(
        log_probs=update["logprobs"] * update.mask, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool()
    )
