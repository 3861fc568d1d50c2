"""Stop strings are found in what the tokens say together."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.api.rows import StopReason
from relax_core.engines.torch.stopping import stop_reason
from relax_core.engines.torch.trajectory import TorchTrajectory
from relax_core.models.byte_tokenizer import byte_tokenizer
from relax_core.testing.generations import request

TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def first_stop(text: str, stop: tuple[str, ...], loop: asyncio.AbstractEventLoop) -> int | None:
    """After how many tokens of a text the trajectory ends with STOP."""
    asked = request("text", stop=stop, max_new_tokens=1000)
    trajectory = TorchTrajectory(asked, 1000, loop.create_future(), 0, frozenset())
    for count, token_id in enumerate(TOKENIZER(text)["input_ids"], 1):
        trajectory.append(token_id, -1.0, 0)
        if stop_reason(trajectory, TOKENIZER) == StopReason.STOP:
            return count
    return None


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("ab é漢🙂\n"), max_size=20),
    stop=st.text(st.sampled_from("ab é漢🙂"), min_size=1, max_size=3),
)
def test_a_text_stops_with_the_token_that_completes_the_string(
    loop: asyncio.AbstractEventLoop, text: str, stop: str
) -> None:
    place = text.find(stop)
    expected = len(text[: place + len(stop)].encode()) if place >= 0 else None
    assert first_stop(text, ("zzz", stop), loop) == expected


def test_special_tokens_can_be_stop_strings(loop: asyncio.AbstractEventLoop) -> None:
    assert first_stop("ab<|im_end|>c", ("<|im_end|>",), loop) == 3


@pytest.mark.parametrize(
    ("token_ids", "reason"),
    [([5], None), ([5, 7], StopReason.STOP), ([5, 6, 6], StopReason.LENGTH), ([5, 6, 7], StopReason.STOP)],
)
def test_a_stop_token_goes_before_the_limit(
    loop: asyncio.AbstractEventLoop, token_ids: list[int], reason: StopReason | None
) -> None:
    trajectory = TorchTrajectory(request("ids"), 3, loop.create_future(), 0, frozenset({7}))
    for token_id in token_ids:
        trajectory.append(token_id, -1.0, 0)
    assert stop_reason(trajectory, None) == reason
