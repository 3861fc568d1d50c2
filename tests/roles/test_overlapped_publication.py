"""While weights are on their way, groups start under older ones than the trainer's: the bound counts those too."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.api.context import ModelSource
from relax_core.dataflow.staleness import Admission
from relax_core.models.prompts import PromptCodec
from relax_core.roles.source import Source
from tests.roles.conftest import Numbers
from tests.roles.test_admission import Factory

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["end", "end", "end", "train", "stage", "arrive", "drop"]), st.integers(0, 9)),
    max_size=80,
)


@pytest.fixture(scope="module")
def codec(tiny_model_path: Any) -> PromptCodec:
    return PromptCodec(ModelSource(tiny_model_path))


class OverlappedFactory(Factory):
    """As :class:`Factory`, but the trainer goes on before engines have what it published, one publication at a time."""

    counts = True
    """Whether the source is told of groups in publication."""

    def _open(self) -> None:
        super()._open()
        self.travelling = 0
        admission = Admission(self.batch, self.bound, self.surplus)
        in_publication = (lambda: self.travelling) if self.counts else (lambda: 0)
        self.source = Source(Numbers(5), 0, self.ledger, admission, in_publication=in_publication)
        self.rollout._source = self.source

    async def stage(self, which: int) -> None:
        """The batch in training is over, its weights are a new version, and no engine has it."""
        if self.training is None or self.travelling:
            return
        self.version += 1
        groups = self.training.table.groups.tolist()
        for group in groups:
            self.ledger.trained(group, self.version)
        self.transport.ack(self.training)
        self.training, self.travelling = None, len(groups)

    async def arrive(self, which: int) -> None:
        """Engines have what is on its way."""
        self.travelling, self.engine.version = 0, self.version


async def run(factory: OverlappedFactory, actions: list[tuple[str, int]]) -> None:
    await factory.step()
    for action, which in actions:
        await getattr(factory, action)(which)
        await factory.step()
        assert len(factory.ledger.pending) + factory.travelling <= factory.limit
    await factory.rollout.close()


@settings(max_examples=80)
@given(batch=st.integers(1, 3), bound=st.integers(0, 2), actions=ACTIONS)
async def test_no_trained_token_is_older_than_the_bound(
    codec: PromptCodec, batch: int, bound: int, actions: list[tuple[str, int]]
) -> None:
    """Groups taken in the order in which they were issued, so that none is made older by one that overtook it."""
    factory = OverlappedFactory(codec, batch, bound, surplus=0)
    await run(factory, [(action, 0) for action, _ in actions])
    assert max(factory.lags, default=0) <= bound


async def test_without_counting_what_travels_the_bound_would_break(codec: PromptCodec) -> None:
    factory = OverlappedFactory(codec, batch=1, bound=1, surplus=0)
    factory.counts = False
    factory._open()
    round_ = ["end", "train", "stage"]
    await run_unchecked(factory, ["end", *round_, "end", "arrive", *round_, *round_])
    assert max(factory.lags) > 1


async def run_unchecked(factory: OverlappedFactory, actions: list[str]) -> None:
    await factory.step()
    for action in actions:
        await getattr(factory, action)(0)
        await factory.step()
    await factory.rollout.close()
