"""The real program, in a process of its own, with plugins installed into a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from install_plugins import RLOO, algorithm, install, install_source

from relax_core import __version__

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart" / "text.yaml"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


def relax(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "NO_COLOR": "1"}
    program = Path(sys.executable).with_name("relax")
    return subprocess.run(
        [program, *arguments], check=False, env=environment, capture_output=True, text=True, timeout=60
    )


def test_list_shows_every_plugin_with_its_status_and_never_fails(site: Path) -> None:
    install(RLOO, site)
    install_source("relax-broken", "import does_not_exist", site)
    install_source("relax-heavy", algorithm("heavy"), site, backend=("no-such-backend>=2",))
    result = relax(site, "plugins", "list")
    assert (result.returncode, result.stderr) == (0, "")
    head, *lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert head == "plugin version components status detail"
    assert "relax-broken 1.0 0 error ModuleNotFoundError: No module named 'does_not_exist'" in lines
    assert 'relax-heavy 1.0 1 no backend missing no-such-backend>=2: pip install "relax-heavy[backend]"' in lines
    assert "relax-rloo 0.1.0 1 ok" in lines


def test_verbose_list_shows_load_times_and_tracebacks(site: Path) -> None:
    install_source("relax-broken", "import does_not_exist", site)
    result = relax(site, "plugins", "list", "--verbose")
    assert "load ms" in result.stdout.splitlines()[0]
    assert "relax_broken/plugin.py" in result.stdout
    assert result.returncode == 0


def test_json_is_all_there_is_on_stdout(site: Path) -> None:
    install_source("relax-loud", f"print('hello')\n{algorithm('loud')}", site)
    result = relax(site, "plugins", "list", "--format", "json")
    listing = json.loads(result.stdout)
    assert (listing["schema"], listing["core"]) == (1, __version__)
    loud = next(plugin for plugin in listing["plugins"] if plugin["name"] == "relax-loud")
    assert loud.pop("load_ms") > 0
    assert loud == {
        "name": "relax-loud",
        "version": "1.0",
        "status": "ok",
        "detail": "",
        "components": {"algorithms": ["loud"]},
        "traceback": None,
    }
    assert result.stderr == "hello\n"


def test_strict_fails_if_a_plugin_that_is_not_disabled_is_not_usable(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_source("relax-working", algorithm("works"), site)
    install_source("relax-broken", "import does_not_exist", site)
    monkeypatch.setenv("RELAX_PLUGINS", "relax-working")
    assert relax(site, "plugins", "list", "--strict").returncode == 0
    monkeypatch.setenv("RELAX_PLUGINS", "relax-working,relax-broken")
    result = relax(site, "plugins", "list", "--strict")
    assert (result.returncode, result.stderr) == (1, "relax: not usable: relax-broken\n")


def test_show_lists_requirements_and_configuration_keys(site: Path) -> None:
    install(RLOO, site)
    result = relax(site, "plugins", "show", "relax-rloo")
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "relax-rloo 0.1.0 ok",
        "requires relax-core<0.2,>=0.1",
        "",
        "algorithm leave_one_out Leave-one-out baseline.",
        "scale float = 1.0 Factor of the advantages.",
    ]


def test_show_says_why_a_plugin_or_its_configuration_is_broken(site: Path) -> None:
    install_source("relax-broken", "import does_not_exist", site)
    install_source("relax-stale", algorithm("stale"), site)
    broken = relax(site, "plugins", "show", "relax-broken")
    assert broken.returncode == 0
    assert broken.stdout.endswith("ModuleNotFoundError: No module named 'does_not_exist'\n")
    stale = relax(site, "plugins", "show", "relax-stale")
    assert stale.returncode == 0
    assert "cannot import nowhere:B: ModuleNotFoundError" in stale.stdout


def test_show_of_an_unknown_plugin_is_one_line_with_the_nearest_name(site: Path) -> None:
    result = relax(site, "plugins", "show", "relax-alogs")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("relax: no plugin 'relax-alogs'; did you mean 'relax-algos'? (installed: ")
    assert result.stderr.count("\n") == 1


def test_selecting_a_broken_plugin_has_an_exit_code_of_its_own(site: Path) -> None:
    install_source("relax-broken", "import does_not_exist", site)
    result = relax(site, "config", "check", str(EXAMPLE), "--set", "algorithm=broken")
    assert result.returncode == 3
    assert "plugin relax-broken is not usable (error): ModuleNotFoundError" in result.stderr
    assert relax(site, "config", "check", str(EXAMPLE)).returncode == 0


def test_an_unknown_command_is_a_usage_error(site: Path) -> None:
    result = relax(site, "plugins", "lsit")
    assert result.returncode == 2
    assert "No such command 'lsit'" in result.stderr


def test_version(site: Path) -> None:
    assert relax(site, "--version").stdout == f"relax {__version__}\n"
