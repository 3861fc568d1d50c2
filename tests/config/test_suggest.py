from pathlib import Path

from relax_core.config.suggest import path_suggestion, suggestion


def test_the_nearest_or_another_place_or_all() -> None:
    assert suggestion("sede", ["seed", "mode"]) == "; did you mean 'seed'?"
    assert suggestion("sede", ["mode"], elsewhere=["run.sede"]) == "; did you mean 'run.sede'?"
    assert suggestion("xyz", ["seed", "mode"]) == "; known here: seed, mode"
    assert suggestion("xyz", []) == "; no key is known here"


def test_the_first_missing_part_of_a_path_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "models" / "qwen").mkdir(parents=True)
    assert path_suggestion(tmp_path / "models" / "qwne") == f"; did you mean '{tmp_path}/models/qwen'?"
    assert path_suggestion(tmp_path / "model" / "qwen") == f"; did you mean '{tmp_path}/models'?"
    assert path_suggestion(tmp_path / "models" / "llama") == ""
