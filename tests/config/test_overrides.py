from typing import Any

import pytest

from relax_core.api.errors import ConfigError
from relax_core.config.load import load_run
from relax_core.config.overrides import apply_overrides


@pytest.mark.parametrize(
    ("document", "override", "changed"),
    [
        ({"seed": 1}, "seed=2", {"seed": 2}),
        ({}, "trainer.learning_rate=1e-5", {"trainer": {"learning_rate": 1e-5}}),
        ({}, "a.b.c=[x, 1]", {"a": {"b": {"c": ["x", 1]}}}),
        ({"a": {"b": 1}}, "a.c={d: null}", {"a": {"b": 1, "c": {"d": None}}}),
        ({"a": None}, "a.b=1", {"a": {"b": 1}}),
        ({"eval": {"every": 1}}, "eval=null", {}),
        ({"eval": {"tasks": 1}}, "eval.tasks=null", {"eval": {"tasks": None}}),
        ({"algorithm": "grpo"}, "algorithm.clip_low=0.1", {"algorithm": {"name": "grpo", "clip_low": 0.1}}),
        ({"sinks": ["console", "jsonl"]}, "sinks.1.x=1", {"sinks": ["console", {"name": "jsonl", "x": 1}]}),
        ({"sinks": ["console"]}, "sinks.1=jsonl", {"sinks": ["console", "jsonl"]}),
        ({}, "sinks.0.every=5", {"sinks": [{"name": "console", "every": 5}, "jsonl", "tensorboard"]}),
        ({}, "reward.0.name=exact", {"reward": [{"name": "exact"}]}),
        ({}, "name=a=b", {"name": "a=b"}),
        ({}, "name=''", {"name": ""}),
    ],
)
def test_overrides(document: dict[str, Any], override: str, changed: dict[str, Any]) -> None:
    assert apply_overrides(document, [override])[0] == changed


def test_later_overrides_win() -> None:
    assert apply_overrides({}, ["seed=1", "seed=2"])[0] == {"seed": 2}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed", "--set seed: write key=value"),
        ("=1", "--set : write key=value"),
        ("a..b=s3cret", "--set a..b: write key=value"),
        ("seed=", "--set seed: no value; write null to remove the key"),
        ("seed=[1", "--set seed: line 1, column 3: expected ',' or ']'"),
        ("seed={a: 1, a: 2}", "--set seed: line 1, column 8: key 'a' is given twice"),
        ("seed.x=1", "--set seed.x: seed is 3 and holds no key 'x'"),
        ("sinks.x=1", "--set sinks.x: sinks is a list; write an index, as in sinks.0.x"),
        ("sinks.4.x=1", "--set sinks.4.x: sinks has 1 items; the next index is 1"),
    ],
)
def test_malformed_overrides_are_one_line(override: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides({"seed": 3, "sinks": ["console"]}, [override])
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_new_name_keeps_the_other_keys_and_explains_those_that_no_longer_fit(document: dict[str, Any]) -> None:
    document["algorithm"] = {"name": "grpo", "reduction": "row_mean", "clip_high": 0.3}
    with pytest.raises(ConfigError) as caught:
        load_run(None, ["algorithm.name=sft"], document)
    assert str(caught.value) == (
        "command line: algorithm.clip_high: unknown key (value 0.3); known here: name, reduction "
        "(a key of 'grpo', which an override replaced)"
    )


def test_a_new_name_over_a_default_one_explains_left_over_keys_too(document: dict[str, Any]) -> None:
    document["algorithm"] = {"clip_high": 0.3}
    with pytest.raises(ConfigError, match="a key of 'grpo', which an override replaced"):
        load_run(None, ["algorithm.name=sft"], document)


def test_a_wrong_key_after_a_new_name_is_still_just_a_wrong_key(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(None, ["algorithm.name=sft", "algorithm.reducton=row_mean"], document)
    assert str(caught.value).endswith("unknown key (value \"row_mean\"); did you mean 'reduction'?")


def test_a_whole_section_can_be_replaced(document: dict[str, Any]) -> None:
    document["reward"] = {"name": "format", "pattern": "x"}
    config = load_run(None, ["reward=exact"], document)
    assert [reward.name for reward in config.rewards] == ["exact"]
