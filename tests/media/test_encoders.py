"""The encoders of a run are built for its model, one for each kind of medium."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from relax_core.api.context import Context
from relax_core.api.errors import ConfigError
from relax_core.config.load import load_run
from relax_core.config.selection import Selected
from relax_core.media.encoders import build_encoders, with_encoders
from relax_core.testing.encoder import model_that_sees_and_hears


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context("test", 0, tmp_path, model_that_sees_and_hears(tmp_path))


def selected(folder: Path, *encoders: str) -> tuple[Selected, ...]:
    """What a configuration selects."""
    base = {"model": {"path": str(folder)}, "updates": 1, "dataset": "generated", "reward": "exact"}
    return load_run(None, [f"encoders={json.dumps(encoders)}"], base).encoders


def test_encoders_are_built_in_order_for_the_model(context: Context) -> None:
    encoders = build_encoders(selected(context.directory, "vision", "audio"), context)
    assert [(encoder.name, encoder.kinds) for encoder in encoders] == [("vision", {"image"}), ("audio", {"audio"})]
    assert with_encoders(context, selected(context.directory, "audio")).encoders[0].name == "audio"


def test_a_run_of_text_has_none(context: Context) -> None:
    assert build_encoders(selected(context.directory), context) == ()


def test_two_encoders_of_a_kind_are_refused(context: Context) -> None:
    with pytest.raises(ConfigError, match=r"encoders.1: vision takes image, as vision does \(encoders.0\)"):
        build_encoders(selected(context.directory, "vision", "vision"), context)


def test_a_model_of_text_is_refused(context: Context, tiny_model_path: Path) -> None:
    assert context.model is not None
    of_text = replace(context, model=replace(context.model, path=tiny_model_path))
    for name, sense in (("vision", "see"), ("audio", "hear")):
        with pytest.raises(ConfigError, match=f"is a qwen3, which does not {sense}"):
            build_encoders(selected(context.directory, name), of_text)


def test_what_a_run_selects_is_written_down_and_read_again(context: Context) -> None:
    base = {"model": {"path": str(context.directory)}, "updates": 1, "dataset": "generated", "reward": "exact"}
    run = load_run(None, ["encoders=[vision, {name: audio, max_seconds: 5}]"], base)
    document = run.resolved()
    assert [encoder["name"] for encoder in document["encoders"]] == ["vision", "audio"]
    assert document["encoders"][1]["max_seconds"] == 5
    assert load_run(None, [], document).resolved() == document


def test_a_misspelt_setting_of_the_second_encoder_is_found(context: Context) -> None:
    base = {"model": {"path": str(context.directory)}, "updates": 1, "dataset": "generated", "reward": "exact"}
    with pytest.raises(ConfigError, match=r"encoders.1.max_second: unknown key .*; did you mean 'max_seconds'"):
        load_run(None, ["encoders=[vision, {name: audio, max_second: 5}]"], base)
