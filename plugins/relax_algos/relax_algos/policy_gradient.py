"""A policy gradient of this package: an advantage estimator and a surrogate, and around them terms by settings.

    loss of a token = surrogate · weights + kl_coefficient · KL(current, reference) - entropy_coefficient · entropy

The weights are constants: of the correction from rollout to old policy, and of off-policy sequence masking. The tokens
become one number by ``reduction``, over those that no exclusion and no rejection takes away.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy.typing as npt

from relax_algos.terms.correction import CorrectionSettings, correction_weights
from relax_algos.terms.entropy import EntropySettings, entropy_term
from relax_algos.terms.exclusion import GROUP_HAS_SIGNAL, ExclusionSettings, exclusion_mask, off_policy_weights
from relax_algos.terms.kl import KLSettings, kl_term
from relax_algos.terms.overlong import OverlongSettings, overlong_rewards
from relax_algos.terms.reduction import ReductionSettings, reduced
from relax_algos.terms.rejection import RejectionSettings, rejection_mask
from relax_core.api.algorithm import ADVANTAGES, Algorithm, Loss, Requirements, Trajectories
from relax_core.api.columns import Column
from relax_core.dataflow.columns import OLD_LOGPROBS
from relax_core.objectives.advantages import has_signal
from relax_core.objectives.kl import k3
from relax_core.objectives.ratios import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class PolicyGradientConfig(
    ExclusionSettings,
    OverlongSettings,
    KLSettings,
    RejectionSettings,
    CorrectionSettings,
    EntropySettings,
    ReductionSettings,
):
    """Settings of every policy gradient."""

    def requirements(self) -> Requirements:
        """What the settings ask for, and the old policy of the ratio."""
        asked = super().requirements()
        return replace(asked, needs=asked.needs | {OLD_LOGPROBS.name})


class PolicyGradient(Algorithm):
    """Subclasses give the surrogate and the advantages."""

    config: PolicyGradientConfig

    @abstractmethod
    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``[N]`` loss to minimise, with gradient, and metrics.

        Args:
            tokens: The micro-batch; ``tokens["advantages"]`` is ``[N]``.
            ratio: ``[N]`` current over old policy, with gradient and a bounded exponent.
        """

    @abstractmethod
    def advantages(self, trajectories: Trajectories) -> npt.ArrayLike | Column:
        """One advantage per trajectory, ``[n]``, or one per token; the rewards are shaped, a KL is not yet taken off.

        (It is no signal: it makes rewards differ that a task gave alike.)
        """

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike | Column]:
        """Advantages, and whether a group has a signal where ``drop_equal_groups`` reads it."""
        shaped = replace(trajectories, rewards=overlong_rewards(self.config, trajectories))
        columns: dict[str, npt.ArrayLike | Column] = {ADVANTAGES.name: self.advantages(shaped)}
        if self.config.drop_equal_groups:
            columns[GROUP_HAS_SIGNAL.name] = has_signal(shaped.rewards, shaped.groups)
        return columns

    def loss(self, tokens: Tokens) -> Loss:
        """The loss at the head of this module."""
        config = self.config
        log_ratio = tokens.logprobs - tokens[OLD_LOGPROBS.name]
        ratio = importance_ratio(log_ratio)
        surrogate, surrogate_metrics = self.surrogate(tokens, ratio)
        weights, weight_metrics = correction_weights(config, tokens)
        on_policy, on_policy_metrics = off_policy_weights(config, tokens)
        kl, kl_metrics = kl_term(config, tokens, ratio)
        entropy, entropy_metrics = entropy_term(config, tokens)
        mask, mask_metrics = self._mask(tokens)
        loss = reduced(config, surrogate * weights * on_policy + kl + entropy, tokens, mask)
        metrics = {
            "ratio": ratio.detach(),
            "kl_old": k3(-log_ratio.detach()),
            "advantage_abs": tokens[ADVANTAGES.name].abs(),
        }
        parts = (surrogate_metrics, weight_metrics, on_policy_metrics, kl_metrics, entropy_metrics, mask_metrics)
        return replace(loss, metrics={name: value for part in (metrics, *parts) for name, value in part.items()})

    def _mask(self, tokens: Tokens) -> tuple[Tensor | None, dict[str, Tensor]]:
        """``[N]`` 1 for the tokens that stay, ``None`` when all do; and metrics."""
        rejected, metrics = rejection_mask(self.config, tokens)
        excluded = exclusion_mask(self.config, tokens)
        if excluded is not None:
            metrics["masked"] = 1 - excluded
        if rejected is None or excluded is None:
            return (excluded if rejected is None else rejected), metrics
        return rejected * excluded, metrics
