"""``relax plugins new``: what it writes, and what it refuses in one line."""

import tomllib
from pathlib import Path

import pytest

from relax_core.hooks import KINDS, section
from relax_core.scaffold.project import create_plugin

SECTIONS = [section(kind) for kind in KINDS]


@pytest.mark.parametrize("kind", SECTIONS)
def test_every_kind_has_a_scaffold_whose_files_are_sound(tmp_path: Path, kind: str) -> None:
    files = create_plugin("relax-two-words", kind, tmp_path)
    places = {file.relative_to(tmp_path / "relax-two-words").as_posix() for file in files}
    package = {f"relax_two_words/{name}.py" for name in ("__init__", "plugin", "config", kind)}
    assert places == package | {"tests/test_two_words.py", "tests/conftest.py", "pyproject.toml", "README.md"}
    for file in files:
        text = file.read_text()
        assert "$" not in text.replace('+$"', ""), f"{file.name} has a place that was not filled"
        if file.suffix == ".py":
            compile(text, file, "exec")
    project = tomllib.loads((tmp_path / "relax-two-words" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["relax"] == {"two_words": "relax_two_words.plugin"}
    assert project["description"].endswith(".")
    assert (tmp_path / "relax-two-words" / "relax_two_words" / "__init__.py").read_text() == ""


def test_it_prints_the_files_and_what_comes_next(relax) -> None:
    made = relax("plugins", "new", "relax-mine", "--kind", "reward")
    assert (made.code, made.err) == (0, "")
    lines = [line.strip() for line in made.out.splitlines()]
    assert lines[0] == "relax-mine/relax_mine/reward.py"
    assert lines[-4:] == [
        "next: edit relax-mine/relax_mine/reward.py",
        'pip install -e "./relax-mine[test]"',
        "pytest ./relax-mine",
        "relax plugins check relax-mine",
    ]
    assert all(Path(line).is_file() for line in lines[:8])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["relax-mine", "--kind", "algoritm"], "there is no kind 'algoritm'; did you mean 'algorithm'? (kinds: "),
        (["Relax_Mine", "--kind", "sink"], "'Relax_Mine' is no name for a plugin; did you mean 'relax-mine'?"),
        (["relax mine!", "--kind", "sink"], "'relax mine!' is no name for a plugin (small letters,"),
        (["relax-core", "--kind", "sink"], "there is a package 'relax_core' already"),
        (["class", "--kind", "sink"], "there is a package 'class' already"),
        (["relax-grpo", "--kind", "algorithm"], "algorithm 'grpo' is one of relax-algos; choose another name"),
        (["relax-mine", "--kind", "sink", "--dir", "modle"], "--dir: modle is no folder; did you mean 'model'?"),
    ],
)
def test_what_is_not_possible_is_refused_in_a_line(relax, arguments: list[str], message: str) -> None:
    before = sorted(Path().iterdir())
    refused = relax("plugins", "new", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err
    assert refused.err.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def test_nothing_is_overwritten(relax) -> None:
    assert relax("plugins", "new", "relax-mine", "--kind", "sink").code == 0
    mine = Path("relax-mine/relax_mine/sink.py")
    mine.write_text("# mine\n")
    again = relax("plugins", "new", "relax-mine", "--kind", "sink")
    assert (again.code, again.message) == (2, "relax: relax-mine is there already; nothing was written")
    assert mine.read_text() == "# mine\n"
