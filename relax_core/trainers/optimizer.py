"""AdamW on float32 master weights: gradients add up until one division, one clipping and one step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from relax_core.api.errors import ConfigError, TrainingError
from relax_core.config import TrainerConfig

logger = logging.getLogger(__name__)


def learning_rate_at(config: TrainerConfig, update: int) -> float:
    """Learning rate of the update with this index, counting from 0 and without skipped ones.

    Linear warm-up to the peak, which is reached at index ``warmup_updates`` − 1; then constant, or down to the minimum,
    linearly or as half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983), which is reached at ``total_updates``.
    """
    if update < config.warmup_updates:
        return config.learning_rate * (update + 1) / config.warmup_updates
    if config.schedule == "constant":
        return config.learning_rate
    progress = min(1.0, (update - config.warmup_updates) / max(1, config.total_updates - config.warmup_updates))
    remaining = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.minimum_learning_rate + (config.learning_rate - config.minimum_learning_rate) * remaining


class MasterOptimizer:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101); decays matrices only, not biases and norms.

    A float32 model is its own master. Of any other the float32 masters are given, gradients are added to them in
    float32 as soon as they are computed, and after each step the masters are rounded into the model.

    Args:
        config: Learning rate, clipping and the rest.
        parameters: The model's own, by name.
        masters: float32, same names; the parameters themselves, or tensors that share no memory with them.

    Raises:
        ConfigError: A schedule without a length.
    """

    def __init__(self, config: TrainerConfig, parameters: Mapping[str, Tensor], masters: Mapping[str, Tensor]) -> None:
        if config.schedule != "constant" and not config.total_updates:
            raise ConfigError(f"trainer.total_updates: the schedule {config.schedule!r} needs a length above 0")
        self.config = config
        self.updates = 0
        self.skipped_in_row = 0
        self.parameters = parameters
        self.masters = masters
        self.separate = {name for name in masters if masters[name] is not parameters[name]}
        for name in self.separate:
            parameters[name].register_post_accumulate_grad_hook(_add_gradient_to(masters[name]))
        groups = [
            {"params": [each for each in masters.values() if each.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [each for each in masters.values() if each.ndim < 2], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, config.learning_rate, config.betas, config.epsilon, fused=True)

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return learning_rate_at(self.config, self.updates)

    def apply(self, denominator: float) -> dict[str, float]:
        """See :meth:`relax_core.api.trainer.Trainer.apply`."""
        gradients = self.reduce() if denominator else {}
        if not gradients:
            self.clear()
            return {"grad_norm": 0.0, "learning_rate": self.learning_rate, "skipped": 1.0}
        norm = self.total_norm(gradients) / denominator
        metrics = {"grad_norm": norm, "learning_rate": self.learning_rate, "skipped": 0.0}
        if not math.isfinite(norm):
            self._skip(denominator)
            return {**metrics, "skipped": 1.0}
        scale = min(1.0, self.config.max_grad_norm / (norm + 1e-6)) / denominator
        for gradient in gradients.values():
            gradient.mul_(scale)
        self._step()
        self.clear()
        return metrics

    def reduce(self) -> dict[str, Tensor]:
        """The gradients of the masters, by name. Where several ranks hold parts of one gradient, an override adds them
        up in place first; it returns the same names on every rank."""
        return {name: master.grad for name, master in self.masters.items() if master.grad is not None}

    def total_norm(self, gradients: Mapping[str, Tensor]) -> float:
        """L2 norm over all gradients of the model. Where ranks hold parts of the model, an override adds up theirs."""
        return float(nn.utils.get_total_norm(list(gradients.values())))

    def _step(self) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = self.learning_rate
        self.adamw.step()
        with torch.no_grad():
            for name in self.separate:
                self.parameters[name].copy_(self.masters[name])
        self.updates += 1
        self.skipped_in_row = 0

    def _skip(self, denominator: float) -> None:
        """Drops a gradient that is not finite, and gives up after too many in a row."""
        gradients = {name: master.grad for name, master in self.masters.items() if master.grad is not None}
        broken = (name for name, gradient in gradients.items() if not gradient.isfinite().all())
        name = next(broken, None)
        cause = f"gradient of {name}" if name else f"gradient norm, or the denominator {denominator},"
        self.clear()
        self.skipped_in_row += 1
        logger.warning("update skipped: the %s is not finite (%d in a row)", cause, self.skipped_in_row)
        if self.skipped_in_row >= self.config.max_skipped_in_row:
            raise TrainingError(f"{self.skipped_in_row} updates in a row were not finite; in the last one the {cause}")

    def clear(self) -> None:
        """Forgets the gradients."""
        for master in self.masters.values():
            master.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is not in the model's own folder: moments and step counts, and separate masters."""
        tensors = {f"master.{name}": self.masters[name] for name in self.separate}
        for name, master in self.masters.items():
            tensors |= {f"{key}.{name}": value for key, value in self.adamw.state.get(master, {}).items()}
        return tensors

    def counters(self) -> dict[str, int]:
        """Updates made, and updates skipped in a row."""
        return {"updates": self.updates, "skipped_in_row": self.skipped_in_row}

    def load(self, tensors: Mapping[str, Tensor], counters: Mapping[str, int]) -> None:
        """Takes over what :meth:`tensors` and :meth:`counters` gave.

        Raises:
            TrainingError: The names are not those of this model.
        """
        self.clear()
        self.adamw.state.clear()
        for full_name, value in tensors.items():
            key, _, name = full_name.partition(".")
            if name not in self.masters:
                raise TrainingError(f"optimizer state {full_name!r} belongs to no parameter of this model")
            master = self.masters[name]
            if key == "master":
                master.data.copy_(value)
            else:
                self.adamw.state[master][key] = value.to(master.device)
        self.updates, self.skipped_in_row = counters["updates"], counters["skipped_in_row"]

    def take_gradients(self, device: str) -> dict[str, Tensor]:
        """Takes the gradients away from the masters, onto another device."""
        gradients = {name: master.grad.to(device) for name, master in self.masters.items() if master.grad is not None}
        self.clear()
        return gradients

    def give_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Gives back what :meth:`take_gradients` took."""
        for name, gradient in gradients.items():
            self.masters[name].grad = gradient.to(self.masters[name].device)

    def move(self, device: str) -> None:
        """Moves moments and separate masters with their gradients."""
        for name in self.separate:
            master = self.masters[name]
            gradient, master.grad = master.grad, None
            master.data = master.data.to(device)
            master.grad = None if gradient is None else gradient.to(device)
        for state in self.adamw.state.values():
            state.update({key: value.to(device) for key, value in state.items()})


def _add_gradient_to(master: Tensor) -> Callable[[Tensor], None]:
    """A hook that moves a parameter's gradient to its master, in float32."""

    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradient, parameter.grad = parameter.grad.float(), None
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)

    return add
