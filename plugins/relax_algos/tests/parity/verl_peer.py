"""Losses and advantages of verl, on tensors alone.

Fields are verl's own options, with its defaults, but for ``clip_ratio_c``: verl cannot switch its dual clip off, and so
large a bound never acts.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from plugins.relax_algos.tests.parity.update import Update


@dataclass(frozen=True)
class ActorLoss:
    """The actor's loss: what ``verl.workers.utils.losses.ppo_loss`` adds up, and rollout correction before it."""

    loss_mode: str = "vanilla"
    loss_agg_mode: str = "token-mean"
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 1e9
    loss_scale_factor: int | None = None
    kl_loss_type: str | None = None
    kl_loss_coef: float = 0.001
    entropy_coeff: float = 0.0
    rollout_is: str | None = None
    rollout_is_threshold: str | float = 2.0
    rollout_rs: str | None = None
    rollout_rs_threshold: str | float | None = None

    def __call__(self, update: Update) -> Tensor:
        """The loss of the update."""
        from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
        from verl.trainer.ppo.rollout_corr_helper import (
            compute_rollout_correction_weights,
            compute_rollout_rejection_mask,
        )
        from verl.workers.config import ActorConfig

        current, old = update["logprobs"], update["old_logprobs"]
        mask, log_ratio = update.mask.to(current.dtype), old - update["rollout_logprobs"]
        weights = None
        if self.rollout_is is not None:
            weights, _ = compute_rollout_correction_weights(log_ratio, mask, self.rollout_is, self.rollout_is_threshold)
        if self.rollout_rs is not None:
            mask, _ = compute_rollout_rejection_mask(log_ratio, mask, self.rollout_rs, self.rollout_rs_threshold)
        config = ActorConfig(
            strategy="fsdp",
            rollout_n=4,
            use_dynamic_bsz=True,
            clip_ratio_low=self.clip_ratio_low,
            clip_ratio_high=self.clip_ratio_high,
            clip_ratio_c=self.clip_ratio_c,
        )
        config.global_batch_info["loss_scale_factor"] = self.loss_scale_factor
        advantages = update["advantages"].reshape(len(mask), -1) * mask
        policy_loss = get_policy_loss_fn(self.loss_mode)
        loss, _ = policy_loss(old, current, advantages, mask, self.loss_agg_mode, config, weights)
        loss = loss - self.entropy_coeff * agg_loss(
            update["entropy"], mask, self.loss_agg_mode, **config.global_batch_info
        )
        if self.kl_loss_type is not None:
            kl = kl_penalty(current, update["ref_logprobs"], self.kl_loss_type)
            loss = loss + self.kl_loss_coef * agg_loss(kl, mask, self.loss_agg_mode, **config.global_batch_info)
        return loss


@dataclass(frozen=True)
class SFTLoss:
    """``verl.workers.utils.losses.sft_loss``."""

    def __call__(self, update: Update) -> Tensor:
        """The loss of the update."""
        from tensordict import TensorDict
        from verl.utils.dataset.dataset_utils import DatasetPadMode
        from verl.utils.tensordict_utils import assign_non_tensor
        from verl.workers.utils.losses import sft_loss

        data = TensorDict({"response_mask": update.mask}, batch_size=len(update.mask))
        assign_non_tensor(data, pad_mode=DatasetPadMode.RIGHT, dp_size=1, batch_num_tokens=int(update.mask.sum()))
        loss, _ = sft_loss(None, {"log_probs": update["logprobs"]}, data)
        return loss


@dataclass(frozen=True)
class DistillationLoss:
    """``verl.trainer.distillation.losses.distillation_loss`` with ``use_policy_gradient``: the negative estimate of
    the KL to the teacher as advantages in the loss of the actor."""

    loss_mode: str = "k1"
    use_policy_gradient: Literal[True] = True

    def __call__(self, update: Update) -> Tensor:
        """The loss of the update."""
        from verl.trainer.ppo.core_algos import kl_penalty

        kl = kl_penalty(update["logprobs"], update["teacher_logprobs"], self.loss_mode).detach()
        return ActorLoss()(update.with_columns(advantages=-kl))


@dataclass(frozen=True)
class Advantages:
    """An advantage estimator, after verl's KL penalty on the reward."""

    adv_estimator: str
    norm_adv_by_std_in_grpo: bool = True
    gamma: float = 1.0
    kl_coef: float = 0.0

    def __call__(self, update: Update) -> Tensor:
        """``[B, T]``, 0 where a token is not trained."""
        from verl.trainer.config import AlgoConfig
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn, kl_penalty

        estimator = get_adv_estimator_fn(self.adv_estimator)
        mask = update.mask.to(update["reward"].dtype)
        kl = kl_penalty(update["old_logprobs"], update["ref_logprobs"], "kl")
        rewards = -self.kl_coef * kl * mask
        last = torch.arange(mask.shape[1]).expand_as(mask).masked_fill(~update.mask, -1).max(1).values
        rewards[torch.arange(len(mask)), last] += update["reward"]
        options = {"norm_adv_by_std_in_grpo": False} if not self.norm_adv_by_std_in_grpo else {}
        if self.adv_estimator != "reinforce_plus_plus":
            options["index"] = update.groups.astype(str).astype(object)
        config = AlgoConfig(gamma=self.gamma, lam=1.0, adv_estimator=self.adv_estimator)
        advantages, _ = estimator(token_level_rewards=rewards, response_mask=mask, config=config, **options)
        return advantages
