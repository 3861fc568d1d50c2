"""The contract of weight syncs rejects each classic error, by the rule that is about it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import wrong_weight_syncs as wrong

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Engine
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.testing.weight_sync import WeightSyncContract
from relax_core.weight_syncs.local.config import LocalWeightSyncConfig
from relax_core.weight_syncs.local.sync import LocalWeightSync

ERRORS: list[tuple[type[LocalWeightSync], str, str]] = [
    (wrong.SendsNothing, "test_every_engine_computes_with_what_was_sent", "with the new version"),
    (wrong.SendsToTheFirst, "test_every_engine_computes_with_what_was_sent", "one acknowledgement per engine"),
    (wrong.HidesErrors, "test_a_failing_engine_is_an_error", "DID NOT RAISE"),
    (wrong.WaitsForEver, "test_an_engine_that_hangs_is_an_error_at_the_deadline", "TimeoutError"),
    (wrong.BelievesEngines, "test_an_engine_that_took_less_is_an_error", "DID NOT RAISE"),
    (wrong.LosesTheCause, "test_a_refused_publication_is_an_error", "Regex pattern did not match"),
    (wrong.SharesTheTrainersMemory, "test_what_was_staged_is_what_arrives", "what it was when it was staged"),
    (wrong.SendsNoChanges, "test_a_delta_arrives_as_whole_tensors_would", "nothing of it arrived"),
    (wrong.KeepsTheFirst, "test_a_late_engine_finds_the_newest_version_whole", "a late engine gets the newest version"),
    (wrong.OffersWhatIsStaged, "test_only_what_was_acknowledged_is_offered", "version 2 is only staged"),
    (wrong.OffersForEver, "test_a_carrier_that_is_closed_offers_nothing_any_more", "nothing is offered after"),
    (wrong.SkipsOldVersions, "test_a_version_does_not_repeat", "DID NOT RAISE"),
    (wrong.GivesUp, "test_after_a_refused_publication_the_next_one_arrives", "a publication failed before"),
    (wrong.ClosesOnce, "test_closing_twice_does_no_harm", "AssertionError"),
]
RULES = {name for name in dir(WeightSyncContract) if name.startswith("test_")}


class ImpatientContract(WeightSyncContract):
    timeout = 5.0


async def start(path: Path, count: int) -> Sequence[Engine]:
    engines = [TorchEngine(TorchEngineConfig(), Context("test", 0, path, ModelSource(path))) for _ in range(count)]
    await asyncio.gather(*(engine.start() for engine in engines))
    return engines


@pytest.mark.parametrize(("kind", "rule", "message"), ERRORS, ids=[kind.__name__ for kind, _, _ in ERRORS])
def test_a_classic_error_breaks_the_rule_that_is_about_it(
    broken_rules: Any,
    tiny_model_path: Path,
    tmp_path: Path,
    kind: type[LocalWeightSync],
    rule: str,
    message: str,
) -> None:
    fixtures = {
        "weight_sync": lambda: kind(LocalWeightSyncConfig(), Context("test", 0, tmp_path)),
        "engines_factory": lambda: start,
        "successor": lambda: None,
        "model_path": lambda: tiny_model_path,
        "monkeypatch": pytest.MonkeyPatch,
    }
    broken = broken_rules(ImpatientContract, fixtures, RULES - {rule})
    assert message in broken.get(rule, "this rule is kept"), broken


def test_every_rule_rejects_something() -> None:
    assert {rule for _, rule, _ in ERRORS} == RULES
