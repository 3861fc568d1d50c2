"""Trajectories that are decoded together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from relax_core.api.errors import RelaxError
from relax_core.api.rows import StopReason
from relax_core.engines.torch.decoder import Decoder
from relax_core.engines.torch.model import CausalModel
from relax_core.engines.torch.sampling import Draw, draw, uniform_numbers
from relax_core.engines.torch.stopping import stop_reason
from relax_core.engines.torch.trajectory import TorchTrajectory


@dataclass(frozen=True)
class Ended:
    """A trajectory that left its batch, and why."""

    trajectory: TorchTrajectory
    outcome: StopReason | RelaxError


class Batch:
    """Decodes trajectories from where they are, one token a step.

    Args:
        model: Computes; its weights stay the same as long as the batch lives.
        trajectories: At least one, of any length.
        version: Version of the weights.
    """

    def __init__(self, model: CausalModel, trajectories: Sequence[TorchTrajectory], version: int) -> None:
        self._model = model
        self._version = version
        leaves: dict[tuple[int, ...], int] = {}
        self._rows = [(each, leaves.setdefault(each.sequence, len(leaves))) for each in trajectories]
        self._decoder = Decoder(model, list(leaves))

    def __len__(self) -> int:
        return len(self._rows)

    def step(self) -> list[Ended]:
        """One token for every trajectory; returns those that ended by it, or were aborted before it."""
        ended = [Ended(each, StopReason.ABORT) for each, _ in self._rows if each.aborted]
        rows = [row for row in self._rows if not row[0].aborted]
        self._rows = []
        if not rows:
            return ended
        drawn = self._draw([trajectory for trajectory, _ in rows], [leaf for _, leaf in rows])
        children: dict[tuple[int, int], int] = {}
        for index, (trajectory, leaf) in enumerate(rows):
            outcome = self._append(trajectory, drawn, index)
            if outcome is not None:
                ended.append(Ended(trajectory, outcome))
            else:
                child = (leaf, drawn.token_ids[index])
                self._rows.append((trajectory, children.setdefault(child, len(children))))
        if children:
            self._decoder.extend([leaf for leaf, _ in children], [token_id for _, token_id in children])
        return ended

    def _draw(self, trajectories: Sequence[TorchTrajectory], leaves: Sequence[int]) -> Draw:
        uniforms = uniform_numbers(
            [each.request.seed for each in trajectories], [len(each.token_ids) for each in trajectories]
        )
        logits = self._decoder.logits[torch.tensor(leaves, device=self._model.device)]
        return draw(logits, [each.request.sampling for each in trajectories], uniforms)

    def _append(self, trajectory: TorchTrajectory, drawn: Draw, index: int) -> StopReason | RelaxError | None:
        """Adds the token drawn for a trajectory; returns how that ended it, or ``None``."""
        try:
            trajectory.append(drawn.token_ids[index], drawn.logprobs[index], self._version, drawn.support[index])
        except RelaxError as error:
            return error
        return stop_reason(trajectory, self._model.tokenizer)
