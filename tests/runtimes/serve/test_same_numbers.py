"""With an engine that is deterministic, where roles and engines are changes no number."""

from collections.abc import Callable
from typing import Any

import pytest

from relax_core.runtimes.local import run_local
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import Start

pytestmark = pytest.mark.slow

SETTINGS = (
    "engine.deterministic=true",
    "threads=1",
    "updates=3",
    "sampling.max_new_tokens=6",
    "trainer.learning_rate=0.01",
)


def ids(finished: Finished) -> list[list[list[int]]]:
    """Token ids of the rows of each batch, in an order that is theirs."""
    batches = []
    for record in finished.batches():
        tokens = [record.table["tokens"][row].tolist() for row in range(len(record.table))]
        batches.append(sorted(tokens))
    return batches


def test_two_engines_and_two_ranks_on_serve_give_the_ids_and_losses_of_one_process(
    start: Start, configure: Callable[..., Any]
) -> None:
    served = start("served", *SETTINGS, "serve.engines=2").finish()
    config, directory = configure("one", *SETTINGS)
    local = Finished(directory.path, run_local(config, directory))
    assert ids(served) == ids(local)
    assert len(ids(served)) == 3
    losses = [[line["train/loss"] for line in run.metrics()] for run in (served, local)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6, abs=1e-6)
    assert any(abs(loss) > 1e-4 for loss in losses[1])
