from typing import Any

import pytest
from jsonschema import Draft202012Validator

from relax_core.config.load import load_run
from relax_core.config.schema import run_schema


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = run_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_what_loads_is_valid(validator: Draft202012Validator, document: dict[str, Any]) -> None:
    assert list(validator.iter_errors(document)) == []
    assert list(validator.iter_errors(load_run(None, base=document).resolved())) == []


@pytest.mark.parametrize(
    "change",
    [
        {"sead": 1},
        {"seed": "x"},
        {"algorithm": "grop"},
        {"algorithm": {"name": "grpo", "clip_hihg": 0.3}},
        {"algorithm": {"name": "sft", "clip_high": 0.3}},
        {"dataset": "jsonl"},
        {"dataset": {"digits": 3}},
        {"reward": [{"name": "exact", "function": "a.py:b"}]},
        {"sinks": ["console", {"name": "jsonl", "every": 2}]},
        {"eval": {"every": 1}},
        {"eval": {"sets": {}}},
        {"eval": {"sets": {"easy": {"tasks": 1}}}},
        {"eval": {"dataset": "generated", "sets": {"easy": {"dataset": "generated"}}}},
        {"eval": {"sets": {"easy": {"dataset": {"name": "generated", "digit": 3}}}}},
        {"warmup": {"updates": 1, "trainer": {"lerning_rate": 1}}},
    ],
    ids=str,
)
def test_what_does_not_load_is_invalid(
    validator: Draft202012Validator, document: dict[str, Any], change: dict[str, Any]
) -> None:
    assert list(validator.iter_errors({**document, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": {"clip_high": 0.3}},
        {"algorithm": "relax-algos/grpo"},
        {"warmup": {"updates": 1, "trainer": {"name": "torch"}}},
        {"sinks": []},
        {"eval": {"sets": {"easy": {"dataset": "generated", "reward": ["exact"]}}}},
        {"dataset": {"name": "jsonl", "path": "x"}},
    ],
    ids=str,
)
def test_short_forms_are_valid(
    validator: Draft202012Validator, document: dict[str, Any], change: dict[str, Any]
) -> None:
    assert list(validator.iter_errors({**document, **change})) == []
