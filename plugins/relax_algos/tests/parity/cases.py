"""The table of what is compared: an option of a peer, and the settings of Relax that give the same numbers.

docs/parity.md shows it. What neither peer has, or what differs on purpose, is named there with its reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

from plugins.relax_algos.tests.parity.trl_peer import DPOTrainerLoss, GRPOTrainerLoss, RLOOTrainerLoss
from plugins.relax_algos.tests.parity.update import Update, first_update, later_update, pairs
from plugins.relax_algos.tests.parity.verl_peer import ActorLoss, Advantages, DistillationLoss, SFTLoss

Peer = Literal["TRL", "verl"]
NO_EXCLUSION = {"drop_equal_groups": False, "mask_truncated": False}


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        algorithm: Name of Relax's algorithm.
        theirs: The peer's loss of an update, or its ``[B, T]`` advantages.
        settings: Of the algorithm.
        counts_empty_rows: The peer's mean over rows also counts rows without a trainable token. Relax's does not, so
            the peer is given the others alone.
        on_pairs: The update is made of pairs.
        first_update_only: In later updates of a batch the peer differs.
    """

    algorithm: str
    theirs: Callable[[Update], Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    counts_empty_rows: bool = False
    on_pairs: bool = False
    first_update_only: bool = False

    def updates(self) -> dict[str, Update]:
        """The updates whose losses are compared, by name."""
        made = {"first update": first_update()}
        if not self.first_update_only:
            made["later update"] = later_update()
        return {name: pairs(update) if self.on_pairs else update for name, update in made.items()}

    @property
    def peer(self) -> Peer:
        """Whose number it is compared with."""
        return "TRL" if type(self.theirs).__module__.endswith("trl_peer") else "verl"

    @property
    def option(self) -> str:
        """The peer's options, as far as they are not the default or name what is compared."""
        shown = {
            each.name: getattr(self.theirs, each.name)
            for each in fields(self.theirs)  # type: ignore[arg-type]
            if each.name in NAMING or getattr(self.theirs, each.name) != each.default
        }
        return _words({"": type(self.theirs).__name__.removesuffix("Loss"), **shown})

    @property
    def ours(self) -> str:
        """Relax's settings."""
        return _words({"": self.algorithm, **self.settings})

    def __str__(self) -> str:
        return f"{self.peer} {self.option}"


NAMING = {"loss_type", "loss_mode", "use_policy_gradient", "adv_estimator"}


def _words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}".strip() for name, value in options.items())


def _row_mean(theirs: GRPOTrainerLoss, algorithm: str = "grpo", **settings: Any) -> Case:
    """TRL's mean over rows."""
    return Case(algorithm, theirs, {"reduction": "row_mean", **settings}, counts_empty_rows=True)


K3 = {"kl_coefficient": 0.04}
CLIP_HIGHER = {"clip_high": 0.28}

LOSSES = [
    # Surrogates and reductions.
    Case("grpo", GRPOTrainerLoss("bnpo")),
    Case("grpo", GRPOTrainerLoss("bnpo", epsilon_high=0.28), CLIP_HIGHER),
    Case("grpo", GRPOTrainerLoss("bnpo", delta=3.0), {"dual_clip": 3.0}),
    Case("grpo", GRPOTrainerLoss("bnpo", mask_truncated_completions=True), {"mask_truncated": True}),
    _row_mean(GRPOTrainerLoss("grpo")),
    Case("dapo", GRPOTrainerLoss("dapo", epsilon_high=0.28), {"reduction": "token_mean", **NO_EXCLUSION}),
    Case("dr_grpo", GRPOTrainerLoss("dr_grpo"), counts_empty_rows=True),
    _row_mean(GRPOTrainerLoss("grpo", "sequence", epsilon=3e-4, epsilon_high=4e-4), "gspo"),
    _row_mean(GRPOTrainerLoss("grpo", "sequence"), "gspo", clip_low=0.2, clip_high=0.2),
    _row_mean(GRPOTrainerLoss("sapo"), "sapo"),
    Case("cispo", GRPOTrainerLoss("cispo", epsilon_high=5.0), {"reduction": "token_mean"}),
    Case("rloo", RLOOTrainerLoss(), counts_empty_rows=True),
    Case("grpo", ActorLoss()),
    Case("grpo", ActorLoss(clip_ratio_high=0.28), CLIP_HIGHER),
    Case("grpo", ActorLoss(clip_ratio_c=3.0), {"dual_clip": 3.0}),
    Case("grpo", ActorLoss(loss_agg_mode="seq-mean-token-mean"), {"reduction": "row_mean"}),
    Case(
        "grpo",
        ActorLoss(loss_agg_mode="seq-mean-token-sum"),
        {"reduction": "row_sum_constant", "constant_length": 1.0},
    ),
    Case(
        "dr_grpo",
        ActorLoss(loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=512),
    ),
    Case("reinforce_plus_plus", ActorLoss()),
    Case("reinforce_plus_plus_baseline", ActorLoss(kl_loss_type="k2", kl_loss_coef=0.01), {"kl_coefficient": 0.01}),
    Case("gspo", ActorLoss("gspo", "seq-mean-token-mean", clip_ratio_low=3e-4, clip_ratio_high=4e-4)),
    Case("gspo", ActorLoss("gspo"), {"clip_low": 0.2, "clip_high": 0.2, "reduction": "token_mean"}),
    Case("sapo", ActorLoss("sapo", "seq-mean-token-mean")),
    Case("cispo", ActorLoss("cispo"), {"clip_low": 0.2, "clip_high": 0.2, "reduction": "token_mean"}),
    Case("sft", SFTLoss()),
    Case("dpo", DPOTrainerLoss("sigmoid"), on_pairs=True),
    Case("dpo", DPOTrainerLoss("sigmoid_norm"), {"length_normalized": True}, on_pairs=True),
    Case("dpo", DPOTrainerLoss("ipo"), {"variant": "ipo", "length_normalized": True}, on_pairs=True),
    Case("opd", DistillationLoss(), first_update_only=True),
    # Kullback-Leibler divergence in the loss, entropy.
    Case("grpo", GRPOTrainerLoss("bnpo", beta=0.04, use_bias_correction_kl=False), K3),
    Case("grpo", GRPOTrainerLoss("bnpo", beta=0.04), {**K3, "kl_estimator": "weighted_k3"}),
    _row_mean(GRPOTrainerLoss("grpo", beta=0.04, use_bias_correction_kl=False), **K3),
    Case("grpo", ActorLoss(kl_loss_type="k2", kl_loss_coef=0.04), {**K3, "kl_estimator": "k2"}),
    Case("grpo", ActorLoss(kl_loss_type="low_var_kl", kl_loss_coef=0.04), {**K3, "kl_estimator": "low_variance"}),
    Case("grpo", GRPOTrainerLoss("bnpo", entropy_coef=0.01), {"entropy_coefficient": 0.01}),
    Case(
        "grpo",
        ActorLoss(loss_agg_mode="seq-mean-token-mean", entropy_coeff=0.01),
        {"entropy_coefficient": 0.01, "reduction": "row_mean"},
    ),
    # From rollout to old policy.
    Case("grpo", ActorLoss(rollout_is="token"), {"correction": "tis"}),
    Case("grpo", ActorLoss(rollout_is="token", rollout_is_threshold="0.5_5.0"), {"correction": "icepop"}),
    Case("grpo", ActorLoss(rollout_is="sequence"), {"correction": "sequence_tis"}),
    Case(
        "grpo",
        ActorLoss(rollout_is="sequence", rollout_is_threshold="0.5_3.0"),
        {"correction": "sequence_mask", "correction_min": 0.5},
    ),
    Case(
        "grpo",
        ActorLoss(rollout_rs="seq_mean_k1", rollout_rs_threshold="0.8_1.25"),
        {"rejection": "geometric", "rejection_min": 0.8, "rejection_max": 1.25},
    ),
    Case(
        "grpo",
        ActorLoss(loss_agg_mode="seq-mean-token-mean", rollout_rs="seq_mean_k3", rollout_rs_threshold=0.03),
        {"rejection": "k3", "rejection_max": 0.03, "reduction": "row_mean"},
    ),
    Case("grpo", GRPOTrainerLoss("bnpo", off_policy_mask_threshold=0.05), {"off_policy_threshold": 0.05}),
]

ADVANTAGES = [
    Case("grpo", Advantages("grpo")),
    Case("dr_grpo", Advantages("grpo", norm_adv_by_std_in_grpo=False)),
    Case("rloo", Advantages("rloo")),
    Case("rloo", Advantages("rloo", kl_coef=0.05), {"kl_coefficient": 0.05}),
    Case("reinforce_plus_plus", Advantages("reinforce_plus_plus")),
    Case(
        "reinforce_plus_plus",
        Advantages("reinforce_plus_plus", gamma=0.9, kl_coef=0.05),
        {"kl_coefficient": 0.05, "discount": 0.9},
    ),
    Case("reinforce_plus_plus_baseline", Advantages("reinforce_plus_plus_baseline")),
]
