"""Third parties' way in: everything as wheels in one fresh environment, a scaffold of every kind, checks and a run."""

import csv
import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from install_plugins import RLOO

from relax_core.hooks import KINDS, section

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
OURS = ("relax", "_editable_impl_relax", "__pycache__")
SCAFFOLDS = {section(kind): f"relax-my-{section(kind).replace('_', '-')}" for kind in KINDS}
PLUGINS = ["relax-rloo", *SCAFFOLDS.values()]
RUN = """
updates: 2
model: {path: model}
dataset: {name: my_dataset, largest: 3}
reward: {name: my_reward}
algorithm: {name: my_algorithm}
trainer: {name: my_trainer}
engine: {name: my_engine}
transport: {name: my_transport}
weight_sync: {name: my_weight_sync}
sinks: [jsonl, my_sink]
batch: {tasks: 2, samples_per_task: 4}
sampling: {max_new_tokens: 3}
device: cpu
"""

Ended = subprocess.CompletedProcess[str]


class Environment:
    """A virtual environment of its own that sees the heavy packages of this one, and none of ours.

    Args:
        folder: Where it is made, and where its commands run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "venv" / "bin"
        venv.create(folder / "venv", symlinks=True)
        borrowed = folder / "borrowed"
        borrowed.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(OURS) and entry.suffix != ".pth":
                (borrowed / entry.name).symlink_to(entry)
        [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
        (packages / "borrowed.pth").write_text(f"{borrowed}\n")

    def install(self, *projects: Path) -> None:
        """Builds the projects' wheels and installs them as a user would."""
        wheels = [
            next(WheelBuilder(str(project)).build(directory=str(self.folder / "wheels"), versions=["standard"]))
            for project in projects
        ]
        python = str(self._bin / "python")
        uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--offline", "--no-deps", "--python", python]
        subprocess.run([*uv, *wheels], check=True, timeout=120, capture_output=True)

    def relax(self, *arguments: str) -> Ended:
        """Runs the program of this environment."""
        command = [self._bin / "relax", *arguments]
        return subprocess.run(command, check=False, cwd=self.folder, timeout=280, capture_output=True, text=True)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: Path) -> Environment:
    """Core, the algorithms, a plugin written by hand and a scaffold of every kind, made by the installed program."""
    environment = Environment(tmp_path_factory.mktemp("kit"))
    (environment.folder / "model").symlink_to(tiny_model_path)
    environment.install(ROOT, ROOT / "plugins" / "relax_algos", RLOO)
    for kind, name in SCAFFOLDS.items():
        made = environment.relax("plugins", "new", name, "--kind", kind)
        assert (made.returncode, made.stderr) == (0, "")
    environment.install(*(environment.folder / name for name in SCAFFOLDS.values()))
    return environment


@pytest.fixture(scope="module")
def checks(environment: Environment) -> Iterator[dict[str, Ended]]:
    """The checks of all plugins, two at a time: about 80 s of CPU time."""
    with ThreadPoolExecutor(2) as pool:
        ended = pool.map(lambda name: environment.relax("plugins", "check", name), PLUGINS)
        yield dict(zip(PLUGINS, ended, strict=True))


def test_all_are_listed_and_usable(environment: Environment) -> None:
    listing = environment.relax("plugins", "list", "--strict", "--format", "json")
    assert (listing.returncode, listing.stderr) == (0, "")
    plugins = {plugin["name"]: plugin["status"] for plugin in json.loads(listing.stdout)["plugins"]}
    assert plugins == dict.fromkeys(["relax-core", "relax-algos", *PLUGINS], "ok")


@pytest.mark.parametrize("name", PLUGINS)
def test_every_plugin_keeps_the_contract_of_its_kind(checks: dict[str, Ended], name: str) -> None:
    ended = checks[name]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " failed" not in ended.stdout
    assert "\nunit " in ended.stdout


@pytest.mark.parametrize("name", SCAFFOLDS.values())
def test_a_scaffold_is_well_kept(environment: Environment, name: str) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--select", "E,F,W,I,B,UP,SIM"], ["format", "--check"]):
        options = ["--isolated", "--no-cache", "--line-length", "120", "--target-version", "py311"]
        done = subprocess.run(
            [ruff, *command, *options], check=False, cwd=environment.folder / name, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_scaffolds_train_together(environment: Environment) -> None:
    (environment.folder / "run.yaml").write_text(RUN)
    ended = environment.relax("train", "run.yaml", "--set", "name=kit")
    assert ended.returncode == 0, ended.stderr
    with (environment.folder / "runs" / "kit" / "my_sink.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["stream"] == "train"]
    assert {row["step"] for row in rows} == {"1", "2"}
    assert {"train/loss", "train/weight_norm"} <= {row["name"] for row in rows}
