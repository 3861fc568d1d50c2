"""What a combination of settings asks for, and which are refused with one line."""

from typing import Any

import pytest
import relax_algos.plugin
from pydantic import ValidationError

from relax_core.api.errors import ConfigError
from relax_core.config import AlgorithmConfig
from relax_core.config.run import BatchConfig, SamplingConfig
from relax_core.dataflow.plan import derive_plan
from relax_core.registry import load_target

CONFIGS = {component.name: component.config for component in relax_algos.plugin.relax_algorithms()}


def config(name: str, **settings: object) -> AlgorithmConfig:
    made = load_target(CONFIGS[name]).model_validate(settings)
    assert isinstance(made, AlgorithmConfig)
    return made


def test_presets_are_the_papers() -> None:
    dr_grpo, dapo = config("dr_grpo").model_dump(), config("dapo").model_dump()
    grpo = config("grpo").model_dump()
    assert {name: value for name, value in dr_grpo.items() if value != grpo[name]} == {
        "normalize_by_std": False,
        "reduction": "row_sum_constant",
        "constant_length": SamplingConfig().max_new_tokens,
    }
    assert {name: value for name, value in dapo.items() if value != grpo[name]} == {
        "clip_high": 0.28,
        "reduction": "group_token_mean",
        "drop_equal_groups": True,
        "mask_truncated": True,
    }


@pytest.mark.parametrize("name", ["m2po", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_what_needs_the_whole_batch_says_so(name: str) -> None:
    plan = derive_plan(config(name), BatchConfig(), SamplingConfig()).describe()
    assert "streaming: no, because the algorithm prepares over the whole batch" in plan


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"correction": "sequence_tis"}, "sequence TIS 2.0"),
        ({"correction": "sequence_mask", "correction_min": 0.1}, "sequence mask 0.1..3.0"),
        ({"rejection": "geometric"}, "geometric rejection 0.99..1.01"),
        ({"correction": "tis", "rejection": "k3", "rejection_max": 0.1}, "TIS 2.0, k3 rejection 0.1"),
    ],
)
def test_the_plan_says_how_the_gap_is_corrected(settings: dict[str, Any], words: str) -> None:
    made = config("gspo", **settings)
    assert made.requirements().correction == words
    assert "rollout_logprobs" in made.requirements().needs
    with pytest.raises(ConfigError, match="leaves nothing to correct"):
        derive_plan(made, BatchConfig(old="rollout"), SamplingConfig())


def test_a_kl_in_the_reward_has_old_and_reference_computed_first() -> None:
    plan = derive_plan(config("rloo", kl_coefficient=0.1), BatchConfig(), SamplingConfig())
    assert [role.name for role in plan.roles].index("advantages") > [role.name for role in plan.roles].index(
        "actor_fwd"
    )
    role = plan.role("advantages")
    assert role is not None
    assert role.reads >= {"ref_logprobs", "old_logprobs", "loss_mask"}


def test_off_policy_masking_reads_what_the_engine_said() -> None:
    assert "rollout_logprobs" in config("grpo", off_policy_threshold=0.01).requirements().needs


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("grpo", {"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k3"}, "zero expected gradient where"),
        ("grpo", {"kl_in": "reward"}, "kl_in would be ignored: it needs a kl_coefficient"),
        ("grpo", {"kl_estimator": "k1"}, "k1 has zero expected gradient as a loss"),
        ("reinforce_plus_plus_baseline", {"kl_coefficient": 0.1, "kl_in": "reward"}, "'loss'"),
        ("reinforce_plus_plus_baseline", {"kl_estimator": "k3"}, "kl_estimator would be ignored"),
        ("reinforce_plus_plus", {"kl_coefficient": 0.1, "kl_in": "loss"}, "'reward'"),
        ("reinforce_plus_plus", {"kl_coefficient": 0.1, "kl_estimator": "k2"}, "'k1'"),
        ("reinforce_plus_plus", {"normalize_by_std": True}, "normalize_by_std"),
        ("rloo", {"correction": "tis"}, "'sequence_tis'"),
        ("rloo", {"reduction": "token_mean"}, "'row_mean'"),
        ("m2po", {"correction": "tis"}, "'none'"),
        ("m2po", {"rejection": "k3"}, "'none'"),
        ("grpo", {"correction": "tis", "correction_min": 0.1}, "needs correction: icepop or sequence_mask"),
        ("grpo", {"rejection": "k3", "rejection_min": 0.1}, "rejection_min would be ignored"),
        ("grpo", {"rejection_max": 2.0}, "rejection_max would be ignored"),
        ("grpo", {"rejection": "geometric", "rejection_max": 0.5}, "rejection_min 0.99 is above rejection_max 0.5"),
        ("grpo", {"overlong_buffer": 3}, "overlong_buffer would be ignored: it needs overlong_length"),
        ("grpo", {"overlong_length": 3, "overlong_buffer": 4}, "overlong_buffer 4 is above overlong_length 3"),
        ("dr_grpo", {"reduction": "row_mean", "constant_length": 7}, "constant_length would be ignored"),
        ("sapo", {"clip_high": 0.2}, "clip_high"),
    ],
)
def test_what_cannot_be_honoured_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(name, **settings)
