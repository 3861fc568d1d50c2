"""``relax plugins check`` on plugins installed into a folder: sound ones, and each way to be wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from install_plugins import IMPORTS, RLOO, algorithm, install, install_source

from relax_core.scaffold.project import create_plugin

HERE = """
from relax_core.api.reward import Reward
from relax_core.api.rows import Score
from relax_core.config import Config, RewardConfig


class Sound(Reward):
    async def score(self, samples):
        return [Score(float(len(sample.text))) for sample in samples]


class Wrong(Sound):
    async def score(self, samples):
        return [Score(1 / len(sample.text)) for sample in samples]


class Unfinished(Reward):
    pass


class Needy(RewardConfig):
    word: str
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


def check(site: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(site), "NO_COLOR": "1"}
    command = [Path(sys.executable).with_name("relax"), "plugins", "check", *arguments]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=280)


def lines(ended: "subprocess.CompletedProcess[str]") -> list[str]:
    return [" ".join(line.split()) for line in ended.stdout.splitlines()]


def rewards(*components: tuple[str, str, str]) -> str:
    """Source of a ``plugin.py`` with rewards of these names, classes and configuration classes."""
    listed = ", ".join(f"Component({name!r}, {target!r}, {config!r})" for name, target, config in components)
    return f"{IMPORTS}@hookimpl\ndef relax_rewards():\n    return [{listed}]\n"


def install_rewards(site: Path, *components: tuple[str, str, str]) -> None:
    install_source("relax-here", rewards(*components), site)
    (site / "relax_here" / "here.py").write_text(HERE)


def test_a_sound_plugin_passes(site: Path) -> None:
    install(RLOO, site)
    ended = check(site, "relax-rloo")
    assert (ended.returncode, ended.stderr) == (0, "")
    head, plugin, component, unit, *rest = lines(ended)
    assert head == "level subject result detail"
    assert plugin == "import relax-rloo 1 ok"
    assert component == "import algorithm leave_one_out 3 ok"
    assert unit.startswith("unit algorithm leave_one_out ")
    assert not any("failed" in line for line in rest)


def test_settings_reach_the_suite_and_wrong_ones_are_refused(site: Path, tmp_path: Path) -> None:
    create_plugin("relax-mine", "dataset", tmp_path)
    install(tmp_path / "relax-mine", site)
    ended = check(site, "relax-mine", "--set", "dataset.mine.largest=3", "--verbose")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "unit dataset mine ok same index same task" in lines(ended)
    for override, message in {
        "dataset.mine.largets=3": "--set: dataset.mine.largets: unknown key (value 3); did you mean 'largest'?",
        "dataset.mine.largest=1": "--set: dataset.mine.largest: 1 is less than 2, the least allowed",
        "dataset.mien.largest=3": "--set dataset.mien: relax-mine has no such dataset; did you mean 'mine'?",
        "datasets.mine.largest=3": "--set datasets: relax-mine has none; did you mean 'dataset'?",
        "dataset=3": "--set dataset: write dataset.mine.key=value",
    }.items():
        refused = check(site, "relax-mine", "--set", override)
        assert (refused.returncode, refused.stderr) == (2, f"relax: {message}\n")


def test_a_broken_rule_is_named_and_fails_the_check(site: Path) -> None:
    config = "relax_core.config:RewardConfig"
    install_rewards(site, ("sound", "relax_here.here:Sound", config), ("wrong", "relax_here.here:Wrong", config))
    ended = check(site, "relax-here")
    assert ended.returncode == 1
    found = lines(ended)
    assert "unit reward sound 8 ok, 1 skipped" in found
    assert any(line.startswith("unit reward wrong failed ") and "ZeroDivisionError" in line for line in found)


def test_what_a_plugin_registers_must_be_what_it_says(site: Path) -> None:
    good = "relax_core.config:RewardConfig"
    install_rewards(
        site,
        ("gone", "relax_here.gone:Gone", good),
        ("unfinished", "relax_here.here:Unfinished", good),
        ("stranger", "relax_here.here:Needy", good),
        ("config", "relax_here.here:Sound", "relax_here.here:Config"),
        ("needy", "relax_here.here:Sound", "relax_here.here:Needy"),
    )
    ended = check(site, "relax-here")
    assert ended.returncode == 1
    found = "\n".join(lines(ended))
    for expected in (
        "import reward gone failed class: cannot import relax_here.gone:Gone: ModuleNotFoundError",
        "import reward unfinished failed class: relax_here.here:Unfinished lacks score",
        "import reward stranger failed class: relax_here.here:Needy is no subclass of relax_core.api.reward.Reward",
        "import reward config failed configuration: relax_here.here:Config must be a subclass of",
        "unit reward gone 1 skipped cannot be imported",
        "unit reward needy 1 skipped needs settings: --set reward.needy.word=...",
    ):
        assert expected in found, ended.stdout


def test_heavy_imports_are_found_where_they_do_harm(site: Path) -> None:
    source = rewards(("here", "relax_here.here:Sound", "relax_here.here:RewardConfig"))
    install_source("relax-here", source, site)
    (site / "relax_here" / "here.py").write_text(f"import torch\n{HERE}")
    install_source("relax-slow", f"import torch\n{source}", site)
    ended = check(site, "relax-here", "--level", "import")
    assert ended.returncode == 1
    message = "failed configuration is light: `relax config check` would import torch, by relax_here.here"
    assert f"import reward here {message}" in lines(ended)
    ended = check(site, "relax-slow", "--level", "import")
    assert ended.returncode == 1
    assert "loads without heavy packages: every command would import torch" in ended.stdout


def test_a_plugin_that_is_not_usable_has_an_exit_code_of_its_own(site: Path) -> None:
    install_source("relax-broken", "import does_not_exist", site)
    ended = check(site, "relax-broken")
    assert ended.returncode == 3
    assert ended.stderr.startswith("relax: plugin relax-broken is not usable (error): ModuleNotFoundError")


def test_levels_and_names_have_a_nearest_one(site: Path) -> None:
    install_source("relax-stale", algorithm("stale"), site)
    unknown = check(site, "relax-stael")
    assert unknown.returncode == 2
    assert "no plugin 'relax-stael'; did you mean 'relax-stale'?" in unknown.stderr
    level = check(site, "relax-stale", "--level", "untt")
    assert level.returncode == 2
    assert "--level: there is no 'untt'; did you mean 'unit'?" in level.stderr


@pytest.mark.skipif(torch.accelerator.is_available(), reason="has an accelerator")
def test_without_an_accelerator_the_level_device_is_refused(site: Path) -> None:
    install(RLOO, site)
    ended = check(site, "relax-rloo", "--level", "device")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "relax: --level device: torch finds no accelerator on this machine\n"


def test_without_pytest_it_says_what_to_install(site: Path) -> None:
    install(RLOO, site)
    program = (
        "import importlib.util, sys; find = importlib.util.find_spec; "
        "importlib.util.find_spec = lambda name, *rest: None if name == 'pytest' else find(name, *rest); "
        "from relax_core.cli import main; sys.argv = ['relax', 'plugins', 'check', 'relax-rloo']; main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == 'relax: the contract suites need pytest: pip install "relax-core[test]"\n'
