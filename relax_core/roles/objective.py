"""The objective of a stage: the algorithm's loss with the planned old policy in place. Small, and can be pickled."""

from dataclasses import dataclass, replace

from relax_core.api.algorithm import Algorithm, Loss
from relax_core.api.errors import TrainingError
from relax_core.api.tokens import Tokens
from relax_core.dataflow.columns import LOSS_SCALE
from relax_core.dataflow.plan import OldPolicy


@dataclass(frozen=True)
class Objective:
    """What a trainer calls for the loss of a micro-batch, in whatever process it holds its model.

    Args:
        algorithm: Whose loss it is.
        old: Where the proximal policy comes from.
    """

    algorithm: Algorithm
    old: OldPolicy

    def __call__(self, tokens: Tokens) -> Loss:
        """The checked loss, with the mismatch of engine and trainer among its metrics.

        Raises:
            TrainingError: The algorithm returned a loss of the wrong shape.
        """
        tokens = self._with_old(tokens)
        loss = self.algorithm.loss(tokens)
        _check(loss, tokens)
        if LOSS_SCALE.name in tokens:
            scale = tokens[LOSS_SCALE.name] if loss.unit == "token" else tokens.row(LOSS_SCALE.name)
            loss = replace(loss, value=loss.value * scale)
        if "rollout_logprobs" not in tokens or self.old in (OldPolicy.ROLLOUT, OldPolicy.NONE):
            return loss
        gap = tokens["old_logprobs"] - tokens["rollout_logprobs"]
        mismatch = {"mismatch/abs_logprob": gap.abs(), "mismatch/kl": gap.expm1() - gap}
        return Loss(loss.value, loss.weight, loss.unit, {**loss.metrics, **mismatch})

    def _with_old(self, tokens: Tokens) -> Tokens:
        if self.old is OldPolicy.CURRENT:
            return tokens.with_column("old_logprobs", tokens.logprobs.detach())
        if self.old is OldPolicy.ROLLOUT:
            return tokens.with_column("old_logprobs", tokens["rollout_logprobs"])
        return tokens


def _check(loss: Loss, tokens: Tokens) -> None:
    expected = len(tokens) if loss.unit == "token" else tokens.rows
    if loss.value.shape != (expected,) or loss.weight.shape != (expected,):
        raise TrainingError(
            f"algorithm: a loss per {loss.unit} needs value and weight of shape ({expected},), "
            f"got {tuple(loss.value.shape)} and {tuple(loss.weight.shape)}"
        )
