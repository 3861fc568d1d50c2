"""Every policy gradient of the package, with the settings that change what it computes, holds the contract."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import relax_algos.plugin
from relax_algos.policy_gradient import PolicyGradient, PolicyGradientConfig

from relax_core.api.context import Context
from relax_core.registry import load_target
from relax_core.testing.algorithm import AlgorithmContract

COMPONENTS = {component.name: component for component in relax_algos.plugin.relax_algorithms()}
POLICY_GRADIENTS = sorted(
    name
    for name, component in COMPONENTS.items()
    if issubclass(config := load_target(component.config), PolicyGradientConfig)
    and "teacher_logprobs" not in config().requirements().needs
)
"""Those that learn from rewards."""
ADDED: dict[str, list[dict[str, Any]]] = {
    "grpo": [
        {"kl_coefficient": 0.1, "kl_estimator": "low_variance", "rejection": "geometric", "drop_equal_groups": True},
        {"correction": "sequence_mask", "correction_max": 1.2, "rejection": "k3", "off_policy_threshold": 0.01},
        {"kl_coefficient": 0.1, "kl_estimator": "k2", "off_policy_threshold": 0.01, "mask_truncated": True},
    ],
    "dr_grpo": [{"correction": "sequence_tis", "entropy_coefficient": 0.01}],
    "dapo": [{"mask_truncated": False, "reduction": "token_mean", "correction": "icepop"}],
    "gspo": [{"correction": "tis", "clip_low": 0.1, "clip_high": 0.1, "reduction": "token_mean"}],
    "sapo": [{"kl_coefficient": 0.1, "kl_estimator": "weighted_k3"}],
    "cispo": [{"one_sided": True, "clip_low": 0.05, "clip_high": 0.05, "reduction": "row_mean"}],
    "m2po": [{"second_moment_budget": 0.001, "drop_equal_groups": True, "kl_coefficient": 0.1}],
    "rloo": [{"correction": "sequence_tis", "dual_clip": 3.0, "entropy_coefficient": 0.01}],
    "reinforce_plus_plus": [{"drop_equal_groups": True, "reduction": "row_mean"}],
    "reinforce_plus_plus_baseline": [{"kl_coefficient": 0.1, "rejection": "k3"}],
}
MORE_THAN_REWARDS: dict[str, dict[str, Any]] = {
    "grpo": {"kl_coefficient": 0.1, "kl_in": "reward", "overlong_length": 5, "overlong_buffer": 3},
    "dapo": {"overlong_length": 5, "overlong_penalty": 0.5, "mask_truncated": False},
    "m2po": {"kl_coefficient": 0.1, "kl_in": "reward"},
    "rloo": {"kl_coefficient": 0.1},
    "reinforce_plus_plus": {"kl_coefficient": 0.1, "discount": 0.9, "overlong_length": 5},
    "reinforce_plus_plus_baseline": {"overlong_length": 5},
}
"""Settings with which equal rewards give unequal advantages: of lengths, of a KL, of the distance to the end."""


def make(name: str, **settings: object) -> PolicyGradient:
    component = COMPONENTS[name]
    config = load_target(component.config).model_validate(settings)
    made = load_target(component.target)(config, Context(run_id="test", seed=0, directory=Path()))
    assert isinstance(made, PolicyGradient)
    return made


def cases() -> list[Any]:
    return [
        pytest.param((name, settings), id=f"{name}-{number}")
        for name in POLICY_GRADIENTS
        for number, settings in enumerate([{}, *ADDED.get(name, [])])
    ]


class PolicyGradientContract(AlgorithmContract):
    """The contract with the column that only ``prepare`` reads."""

    def entry(self, name: str, logprobs: npt.NDArray[np.float64], noise: npt.NDArray[np.float64]) -> npt.ArrayLike:
        if name == "loss_mask":
            return np.ones(len(logprobs), np.bool_)
        return super().entry(name, logprobs, noise)


class TestContract(PolicyGradientContract):
    @pytest.fixture(params=cases())
    def algorithm(self, request: pytest.FixtureRequest) -> PolicyGradient:
        name, settings = request.param
        return make(name, **settings)


class TestContractWithMoreThanRewards(PolicyGradientContract):
    advantages_from_rewards = False

    @pytest.fixture(params=MORE_THAN_REWARDS)
    def algorithm(self, request: pytest.FixtureRequest) -> PolicyGradient:
        return make(request.param, **MORE_THAN_REWARDS[request.param])


def test_every_algorithm_that_learns_from_rewards_is_here() -> None:
    assert set(ADDED) == set(POLICY_GRADIENTS)
