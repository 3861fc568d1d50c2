"""Trajectories that are decoded together, which enter and leave between steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from relax_core.api.errors import RelaxError
from relax_core.api.media import Encoded
from relax_core.api.rows import StopReason
from relax_core.engines.torch.decoder import Decoder
from relax_core.engines.torch.model import CausalModel
from relax_core.engines.torch.sampling import Draw, draw, uniform_numbers
from relax_core.engines.torch.stepwise import StepwiseDecoder
from relax_core.engines.torch.stopping import stop_reason
from relax_core.engines.torch.trajectory import TorchTrajectory


@dataclass(frozen=True)
class Ended:
    """A trajectory that left its batch, and why."""

    trajectory: TorchTrajectory
    outcome: StopReason | RelaxError


@dataclass(frozen=True)
class Step:
    """What a step did: ``tokens`` it drew, and the trajectories that ``ended``."""

    tokens: int
    ended: list[Ended]


class Batch:
    """Decodes trajectories from where they are, one token a step.

    Args:
        model: Computes; its weights stay the same as long as the batch lives.
        version: Version of the weights.
        deterministic: Whether no bit of a trajectory may depend on the others.
    """

    def __init__(self, model: CausalModel, version: int, deterministic: bool = False) -> None:
        self._model = model
        self._version = version
        self._new_decoder: Callable[[CausalModel], Decoder | StepwiseDecoder]
        self._new_decoder = StepwiseDecoder if deterministic else Decoder
        self._decoder = self._new_decoder(model)
        self._entering: list[TorchTrajectory] = []
        self._leaves: dict[TorchTrajectory, int] = {}
        """The row of the leaf from which each drew its last token."""

    @property
    def trajectories(self) -> list[TorchTrajectory]:
        """All that have not ended."""
        return [*self._leaves, *self._entering]

    @property
    def open(self) -> bool:
        """Whether trajectories may enter now."""
        return not self._leaves or self._decoder.open

    def enter(self, trajectories: Sequence[TorchTrajectory]) -> None:
        """Takes trajectories of any length into the next step."""
        self._entering += trajectories

    def step(self) -> Step:
        """One token for every trajectory, but for those that were aborted before."""
        aborted = {each for each in self.trajectories if each.aborted}  # asked once: an abort may come at any moment
        ended = [Ended(each, StopReason.ABORT) for each in aborted]
        leaves = self._compute(aborted)
        self._entering, self._leaves = [], {}
        if not leaves:
            return Step(0, ended)
        drawn = self._draw(leaves)
        failed = 0
        for index, (trajectory, leaf) in enumerate(leaves.items()):
            outcome = self._append(trajectory, drawn, index)
            if outcome is None:
                self._leaves[trajectory] = leaf
            else:
                ended.append(Ended(trajectory, outcome))
                failed += isinstance(outcome, RelaxError)
        return Step(len(leaves) - failed, ended)

    def _compute(self, aborted: set[TorchTrajectory]) -> dict[TorchTrajectory, int]:
        """Extends the leaves by the tokens drawn last, and adds those of who enters; returns the row of all others."""
        staying = {each: (leaf, each.token_ids[-1]) for each, leaf in self._leaves.items() if each not in aborted}
        children = list(dict.fromkeys(staying.values()))
        if children:
            rows = self._decoder.extend([leaf for leaf, _ in children], [token_id for _, token_id in children])
        else:
            rows, self._decoder = [], self._new_decoder(self._model)
        by_child = dict(zip(children, rows, strict=True))
        entering = {each: (each.sequence, each.media_keys) for each in self._entering if each not in aborted}
        prompts = {prompt: each.request.media for each, prompt in entering.items()}
        by_prompt = dict(zip(prompts, self._add(prompts), strict=True)) if prompts else {}
        return {
            **{each: by_child[child] for each, child in staying.items()},
            **{each: by_prompt[prompt] for each, prompt in entering.items()},
        }

    def _add(self, prompts: Mapping[tuple[tuple[int, ...], tuple[str, ...]], Sequence[Encoded]]) -> list[int]:
        media = {index: media for index, media in enumerate(prompts.values()) if media}
        return self._decoder.add([sequence for sequence, _ in prompts], media)

    def _draw(self, leaves: dict[TorchTrajectory, int]) -> Draw:
        uniforms = uniform_numbers([each.request.seed for each in leaves], [each.place for each in leaves])
        logits = self._decoder.logits[torch.tensor(list(leaves.values()), device=self._model.device)]
        return draw(logits, [each.request.sampling for each in leaves], uniforms)

    def _append(self, trajectory: TorchTrajectory, drawn: Draw, index: int) -> StopReason | RelaxError | None:
        """Adds the token drawn for a trajectory; returns how that ended it, or ``None``."""
        try:
            trajectory.append(drawn.token_ids[index], drawn.logprobs[index], self._version, drawn.support[index])
        except RelaxError as error:
            return error
        return stop_reason(trajectory, self._model.tokenizer)
