"""Media reach an engine's process once, however many requests have them, and are not kept there."""

from collections.abc import Sequence

from relax_core.api.media import Encoded
from relax_core.engines.process.media import SentMedia
from relax_core.engines.process.protocol import Forget, Medium
from tests.media.letters import Letters


class Process:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Medium | Forget] = []

    def tell(self, message: Medium | Forget) -> None:
        self.told.append(message)


def test_a_medium_is_sent_with_the_first_request_and_forgotten_with_the_last() -> None:
    process, sent = Process(), SentMedia()
    first, second = (Letters().encode("image", data) for data in (b"first", b"second"))
    groups: Sequence[Sequence[Encoded]] = [[first, second]] * 4 + [[first]] * 4
    opened = [sent.sent(media, process) for media in groups]  # type: ignore[arg-type]
    for request in opened:
        request.__enter__()
    assert process.told == [Medium(first.key, first.packed), Medium(second.key, second.packed)]
    for request in opened:
        request.__exit__(None, None, None)
    assert process.told[2:] == [Forget(second.key), Forget(first.key)]
    with sent.sent([second], process):  # type: ignore[arg-type]
        assert process.told[-1] == Medium(second.key, second.packed), "it is sent again"
