"""Requests that an engine cannot answer as they ask are refused by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relax_core.api.engine import Capability, GenerateRequest, Generation, RequestClass, SamplingParameters
from relax_core.api.errors import RelaxError
from relax_core.api.rows import StopReason
from relax_core.engines.requests import check_request, ended_by_context

NONE: frozenset[Capability] = frozenset()
ALL = frozenset(Capability)


def asked(
    prompt: tuple[int, ...] = (1, 2, 3), request_class: RequestClass = RequestClass.TRAIN, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest("key", prompt, SamplingParameters(**{"max_new_tokens": 4, **sampling}), 0, request_class)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (asked(()), "the prompt is empty"),
        (asked((1, 10)), "ids outside 0 to 9"),
        (asked((-1,)), "ids outside 0 to 9"),
        (asked((1,) * 8), "no room in a context of 8"),
        (replace(asked(), generated=-1), "generated is -1"),
        (replace(asked(), generated=3), "generated is 3, must be at least 0 and below the 3 tokens of the prompt"),
        (asked(max_new_tokens=0), "max_new_tokens is 0"),
        (asked(temperature=-1.0), r"temperature is -1\.0"),
        (asked(temperature=float("nan")), "temperature is nan"),
        (asked(top_p=0.0), r"top_p is 0\.0"),
        (asked(top_k=-1), "top_k is -1"),
        (asked(stop=("",)), "a stop string is empty"),
    ],
)
def test_impossible_requests_are_refused_by_name(request_: GenerateRequest, problem: str) -> None:
    with pytest.raises(RelaxError, match=f"request 'key': .*{problem}"):
        check_request(request_, context_length=8, vocabulary=10, capabilities=ALL)


@pytest.mark.parametrize(
    ("request_", "capability"),
    [
        (asked(stop=("x",)), "'stop_strings'"),
        (asked(top_k=3), "'support_ids'"),
        (asked(top_p=0.9), "'support_ids'"),
    ],
)
def test_a_missing_capability_is_named(request_: GenerateRequest, capability: str) -> None:
    with pytest.raises(RelaxError, match=f"request 'key': .*{capability}"):
        check_request(request_, context_length=8, vocabulary=10, capabilities=NONE)
    check_request(request_, context_length=8, vocabulary=10, capabilities=ALL)


@pytest.mark.parametrize(
    "request_",
    [
        asked(),
        replace(asked(), generated=2),
        asked((9,) * 7),
        asked(temperature=0.0, top_k=3),
        asked(request_class=RequestClass.EVAL, top_k=3),
    ],
)
def test_possible_requests_pass(request_: GenerateRequest) -> None:
    check_request(request_, context_length=8, vocabulary=10, capabilities=NONE)


@pytest.mark.parametrize(
    ("tokens", "reason", "cut"),
    [
        (3, StopReason.LENGTH, True),
        (4, StopReason.LENGTH, False),
        (3, StopReason.STOP, False),
        (3, StopReason.ABORT, False),
    ],
)
def test_an_answer_shorter_than_asked_that_ends_by_length_was_ended_by_the_context(
    tokens: int, reason: StopReason, cut: bool
) -> None:
    generation = Generation("key", (5,) * tokens, np.zeros(tokens, np.float32), reason, ((0, 0),))
    assert ended_by_context(asked(max_new_tokens=4), generation) == cut
