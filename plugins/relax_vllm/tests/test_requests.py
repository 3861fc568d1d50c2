"""Requests that vLLM would answer otherwise than they ask are refused; needs no vLLM."""

from dataclasses import replace
from typing import Any

import pytest
from relax_vllm.engine import VLLMEngine
from relax_vllm.requests import check_request, sampling_arguments

from relax_core.api.engine import GenerateRequest, RequestClass, SamplingParameters
from relax_core.api.errors import RelaxError


def asked(
    prompt: tuple[int, ...] = (1, 2, 3), request_class: RequestClass = RequestClass.TRAIN, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest("key", prompt, SamplingParameters(**{"max_new_tokens": 4, **sampling}), 0, request_class)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (asked(()), "the prompt is empty"),
        (asked(temperature=0.001), r"temperature is 0\.001, vLLM takes 0 and 0\.01 or more"),
        (asked(temperature=float("nan")), "temperature is nan"),
        (
            replace(asked(stop=("x",)), generated=1),
            "generated is 1, but vLLM looks for stop strings in new tokens only",
        ),
        (asked(top_k=3), "'support_ids'"),
        (asked(top_p=0.9), "'support_ids'"),
    ],
)
def test_impossible_requests_are_refused_by_name(request_: GenerateRequest, problem: str) -> None:
    with pytest.raises(RelaxError, match=f"request 'key': .*{problem}"):
        check_request(request_, context_length=8, vocabulary=10, capabilities=VLLMEngine.capabilities)


@pytest.mark.parametrize(
    "request_",
    [asked(), asked((9,) * 7), asked(temperature=0.0, top_k=3), asked(request_class=RequestClass.EVAL, top_k=3)],
)
def test_possible_requests_pass(request_: GenerateRequest) -> None:
    check_request(request_, context_length=8, vocabulary=10, capabilities=VLLMEngine.capabilities)


@pytest.mark.parametrize("seed", [-1, 0, 2**64 - 1])
def test_every_seed_is_one_that_vllm_uses(seed: int) -> None:
    used = sampling_arguments(replace(asked(), seed=seed), 4, 10)["seed"]
    assert 0 <= used < 2**63, "vLLM takes -1 for no seed, and torch takes 63 bits"


def test_what_is_continued_draws_other_numbers_than_its_beginning() -> None:
    seeds = {sampling_arguments(replace(asked(), generated=count), 4, 10)["seed"] for count in range(3)}
    assert len(seeds) == 3
