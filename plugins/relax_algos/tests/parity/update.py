"""The numbers that Relax and its peers are both given: an update of answers, padded as the peers have it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relax_core.api.rows import StopReason

LENGTHS = (5, 3, 7, 1, 0, 4, 6, 2, 7, 3)
GROUPS = np.array([0, 1, 0, 2, 1, 0, 2, 1, 2, 2])
"""Ten answers of three groups; one of them has no trainable token."""


@dataclass(frozen=True)
class Update:
    """B answers of at most T tokens.

    Args:
        mask: bool ``[B, T]``, true where a token is trained: neither in the padding nor in the output of a tool.
        groups: int64 ``[B]`` group of each answer.
        columns: By the name of Relax's column, ``[B, T]`` numbers of tokens or ``[B]`` of answers.
    """

    mask: Tensor
    groups: npt.NDArray[np.int64]
    columns: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    @property
    def trained(self) -> list[int]:
        """The answers with a trainable token: those that Relax calls rows of an update."""
        return torch.nonzero(self.mask.any(1))[:, 0].tolist()

    def select(self, answers: Sequence[int]) -> "Update":
        """Some of the answers."""
        chosen = torch.as_tensor(answers)
        columns = {name: value[chosen] for name, value in self.columns.items()}
        return Update(self.mask[chosen], self.groups[chosen.numpy()], columns)

    def with_columns(self, **columns: Tensor) -> "Update":
        """The same update with other numbers."""
        return replace(self, columns={**self.columns, **columns})

    def to(self, dtype: torch.dtype) -> "Update":
        """The same update in another precision."""
        floats = {name: value for name, value in self.columns.items() if value.is_floating_point()}
        return self.with_columns(**{name: value.to(dtype) for name, value in floats.items()})

    def rows(self, names: Collection[str]) -> list[dict[str, Tensor]]:
        """The trained answers without padding, as :func:`relax_core.testing.algorithm.make_tokens` takes them."""
        chosen = {name: self.columns[name] for name in names}
        return [
            {
                name: (value[row][self.mask[row]] if value.dim() > 1 else value[row]).numpy()
                for name, value in chosen.items()
            }
            for row in self.trained
        ]


def later_update(seed: int = 0) -> Update:
    """An update after the first of a batch: all policies differ, some tokens by more than any bound."""
    random = torch.Generator().manual_seed(seed)
    shape = len(LENGTHS), max(LENGTHS)

    def normal(size: tuple[int, ...] = shape) -> Tensor:
        return torch.randn(size, generator=random, dtype=torch.float64)

    mask = torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]
    mask[2, 3:5] = False  # what a tool said within an answer
    current = -normal().abs() - 0.01
    old = current + 0.2 * normal()
    old[0, 1] -= 2.0  # ratios of more than 5, with advantages of both signs
    old[1, 0] -= 2.0
    rollout = old + 0.2 * normal()
    rollout[2, 0] -= 2.0  # a weight of more than 5
    rollout[5] += 0.4
    reference = current + 0.3 * normal()
    reference[6, 2] += 3.5  # a k3 of more than 10
    advantages = normal(shape[:1])
    advantages[:4] = torch.tensor([-1.3, 0.9, 0.4, 0.0])
    columns = {
        "logprobs": current,
        "entropy": normal().abs(),
        "old_logprobs": old,
        "rollout_logprobs": rollout,
        "ref_logprobs": reference,
        "advantages": advantages,
        "teacher_logprobs": current + 0.3 * normal(),
        "reward": torch.tensor([1.0, 0.5, 0.0, 0.3, 0.0, 1.0, 0.7, 1.0, -2.0, 0.3], dtype=torch.float64),
        "stop_reason": torch.where(torch.tensor(LENGTHS) == 7, int(StopReason.LENGTH), int(StopReason.STOP)),
    }
    return Update(mask, GROUPS, columns)


def first_update() -> Update:
    """The first update of a batch: the old policy is the current one."""
    update = later_update(1)
    return update.with_columns(old_logprobs=update["logprobs"])


def pairs(update: Update) -> Update:
    """Pairs of answers to the same task, all of the better ones first; each has a trainable token."""
    chosen = update.select([0, 1, 2, 3, 5, 6, 7, 8])
    preferred = torch.arange(len(chosen.groups)) < len(chosen.groups) // 2
    return replace(chosen.with_columns(preferred=preferred), groups=np.tile(np.arange(4), 2))
