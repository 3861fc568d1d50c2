"""The real program, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from install_plugins import algorithm, install_source

RUN = """\
model: {path: model}
updates: 4
dataset: {name: generated, digits: 3}
reward: exact
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


def relax(folder: Path, *arguments: str, program: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "NO_COLOR": "1"}
    command = program or (str(Path(sys.executable).with_name("relax")),)
    return subprocess.run(
        [*command, *arguments], check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_check_prints_one_line(folder: Path) -> None:
    result = relax(folder, "config", "check", "run.yaml", "--set", "algorithm.clip_high=0.28")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == (
        "run.yaml: ok (algorithm grpo, trainer torch, engine torch, dataset generated, reward exact, 4 updates)\n"
    )


def test_check_prints_a_line_for_each_problem_and_exits_with_2(folder: Path) -> None:
    result = relax(folder, "config", "check", "run.yaml", "--set", "sead=1", "--set", "algorithm.clip_hihg=0.3")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "relax: run.yaml: sead: unknown key (value 1); did you mean 'seed'?\n"
        "run.yaml: algorithm.clip_hihg: unknown key (value 0.3); did you mean 'clip_high'?\n"
    )


def test_a_selected_plugin_that_is_not_usable_exits_with_3(folder: Path) -> None:
    install_source("relax-heavy", algorithm("heavy"), folder / "site", backend=("no-such-backend>=2",))
    result = relax(folder, "config", "check", "run.yaml", "--set", "algorithm=heavy")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("relax: run.yaml: algorithm: plugin relax-heavy is not usable (no backend)")
    assert relax(folder, "config", "check", "run.yaml").returncode == 0


def test_a_component_whose_settings_cannot_be_imported_exits_with_3(folder: Path) -> None:
    install_source("relax-rotten", algorithm("rotten"), folder / "site")
    result = relax(folder, "config", "check", "run.yaml", "--set", "algorithm.name=rotten")
    assert result.returncode == 3
    assert "relax: run.yaml: algorithm.name: cannot import nowhere:B: ModuleNotFoundError" in result.stderr


def test_show_prints_every_default_without_secrets_and_can_be_checked_again(folder: Path) -> None:
    url = "dataset={name: reasoning_gym, task: chain_sum, options: {token: s3cret}}"
    result = relax(folder, "config", "show", "run.yaml", "--set", url)
    assert (result.returncode, result.stderr) == (0, "")
    assert "s3cret" not in result.stdout
    shown = yaml.safe_load(result.stdout)
    assert shown["dataset"]["options"] == {"token": "***"}
    assert shown["trainer"]["max_grad_norm"] == 1.0
    (folder / "shown.yaml").write_text(result.stdout)
    assert relax(folder, "config", "check", "shown.yaml").returncode == 0


def test_schema_is_json(folder: Path) -> None:
    result = relax(folder, "config", "schema")
    assert json.loads(result.stdout)["title"] == "Relax run"


LIGHT = """\
import sys
from relax_core.cli.main import app
try:
    app()
finally:
    heavy = {"torch", "ray", "transformers", "tensorboard"} & set(sys.modules)
    assert not heavy, heavy
"""


@pytest.mark.parametrize("arguments", [("check", "run.yaml"), ("show", "run.yaml"), ("schema",)])
def test_nothing_heavy_is_imported(folder: Path, arguments: tuple[str, ...]) -> None:
    result = relax(folder, "config", *arguments, program=(sys.executable, "-c", LIGHT))
    assert (result.returncode, result.stderr) == (0, "")
