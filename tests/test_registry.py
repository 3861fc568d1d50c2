"""Plugins are really installed here; see install_plugins."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from install_plugins import IMPORTS, RLOO, algorithm, importable, install, install_source

from relax_core import __version__
from relax_core.api.algorithm import Algorithm
from relax_core.api.errors import ConfigError, PluginError
from relax_core.discovery import PluginRecord
from relax_core.hooks import KINDS
from relax_core.registry import Registry, load_target, registry


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """A folder on the import path to install plugins into."""
    with importable(tmp_path / "site"):
        yield tmp_path / "site"


def load() -> dict[str, PluginRecord]:
    return {plugin.name: plugin for plugin in Registry.load().plugins}


def test_a_third_party_plugin_is_found_by_name_and_its_class_is_imported_only_when_asked_for(site: Path) -> None:
    install(RLOO, site)
    found = Registry.load().find("algorithms", "leave_one_out")
    assert (found.plugin.name, found.plugin.version, found.plugin.status) == ("relax-rloo", "0.1.0", "ok")
    assert found.plugin.requirements == ("relax-core<0.2,>=0.1",)
    assert "relax_rloo.rloo" not in sys.modules
    assert issubclass(load_target(found.component.target), Algorithm)
    assert load_target(found.component.config)().scale == 1.0


def test_embedded_components_come_through_the_same_door() -> None:
    embedded = load()["relax-core"]
    assert embedded.status == "ok"
    assert set(embedded.components) == set(KINDS) - {"algorithms", "encoders"}


BROKEN = {
    "import": ("import does_not_exist", "ModuleNotFoundError: No module named 'does_not_exist'"),
    "exit": ("import sys\nsys.exit('no licence')", "SystemExit: no licence"),
    "misspelt hook": (
        f"{IMPORTS}@hookimpl\ndef relax_algoritms():\n    return []",
        "unknown hook relax_algoritms; did you mean 'relax_algorithms'?",
    ),
    "unknown argument": (f"{IMPORTS}@hookimpl\ndef relax_sinks(run):\n    return []", "PluginValidationError"),
    "forgotten marker": ("def relax_sinks():\n    return []", "implements no hook: mark its functions with @hookimpl"),
    "nothing returned": (f"{IMPORTS}@hookimpl\ndef relax_sinks():\n    pass", "relax_sinks must return a list"),
    "one component": (
        f"{IMPORTS}@hookimpl\ndef relax_sinks():\n    return Component('a', 'm:A', 'm:B')",
        "relax_sinks must return a list",
    ),
    "other objects": (f"{IMPORTS}@hookimpl\ndef relax_sinks():\n    return ['a']", "'a', which is not a Component"),
    "dotted target": (
        f"{IMPORTS}@hookimpl\ndef relax_sinks():\n    return [Component('a', 'm.A', 'm:B')]",
        "'a' has 'm.A' where 'package.module:Class' belongs",
    ),
    "name twice": (
        f"{IMPORTS}@hookimpl\ndef relax_sinks():\n    return 2 * [Component('a', 'm:A', 'm:B')]",
        "the name 'a' is given twice",
    ),
    "second hook": (
        f"{algorithm('half')}\n@hookimpl\ndef relax_sinks():\n    raise ValueError('not today')",
        "ValueError: not today",
    ),
}


@pytest.mark.parametrize(("source", "detail"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_listed_with_its_reason_and_breaks_only_what_selects_it(
    site: Path, source: str, detail: str
) -> None:
    install_source("relax-broken", source, site)
    install_source("relax-working", algorithm("works"), site)
    loaded = Registry.load()

    broken = loaded.plugin("relax-broken")
    assert broken.status == "error"
    assert detail in broken.detail
    assert "Traceback" in broken.traceback
    assert broken.components == {}
    assert loaded.find("algorithms", "works").plugin.name == "relax-working"
    for name in ("broken", "relax-broken/anything"):
        with pytest.raises(PluginError, match="relax-broken") as caught:
            loaded.find("algorithms", name)
        assert detail in str(caught.value)
    with pytest.raises(ConfigError, match="relax-broken") as unknown:
        loaded.find("algorithms", "half")
    assert detail in str(unknown.value)


def test_what_a_plugin_prints_while_it_is_loaded_goes_to_stderr(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install_source("relax-loud", f"print('hello')\n{algorithm('loud')}", site)
    assert load()["relax-loud"].status == "ok"
    assert capsys.readouterr() == ("", "hello\n")


def test_a_plugin_for_another_core_is_not_imported(site: Path) -> None:
    install_source("relax-old", "raise AssertionError", site, dependencies=("relax-core<0.1",))
    old = load()["relax-old"]
    assert (old.status, old.detail) == ("incompatible", f"needs relax-core<0.1, this is {__version__}")


@pytest.mark.parametrize(
    ("backend", "missing"),
    [
        ("no-such-backend>=2", "no-such-backend>=2"),
        ("pluggy>=99", "pluggy>=99 ("),
        ("pluggy>=1", None),
        ("no-such-backend; sys_platform == 'nowhere'", None),
    ],
)
def test_packages_of_the_extra_backend_are_looked_up(site: Path, backend: str, missing: str | None) -> None:
    install_source("relax-heavy", algorithm("heavy"), site, backend=(backend,))
    loaded = Registry.load()
    heavy = loaded.plugin("relax-heavy")
    if missing is None:
        assert (heavy.status, heavy.detail) == ("ok", "")
        assert loaded.find("algorithms", "heavy").plugin == heavy
    else:
        assert heavy.status == "no backend"
        assert heavy.detail.startswith(f"missing {missing}")
        assert heavy.detail.endswith('pip install "relax-heavy[backend]"')
        assert [component.name for component in heavy.components["algorithms"]] == ["heavy"]
        with pytest.raises(PluginError, match=r"relax-heavy is not usable \(no backend\): missing"):
            loaded.find("algorithms", "heavy")


def test_one_of_several_backends_is_enough(site: Path) -> None:
    install_source("relax-either", algorithm("either"), site, backend=("no-such",), other_backend=("pluggy>=1",))
    install_source("relax-neither", algorithm("neither"), site, backend=("no-such",), other_backend=("nor-this",))
    loaded = Registry.load()
    assert loaded.plugin("relax-either").status == "ok"
    assert loaded.plugin("relax-neither").detail == (
        'missing no-such: pip install "relax-neither[backend]"; or missing nor-this: pip install '
        '"relax-neither[backend-other]"'
    )


def test_a_backend_without_metadata_can_be_assumed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_source("relax-heavy", algorithm("heavy"), site, backend=("no-such-backend",))
    monkeypatch.setenv("RELAX_ASSUME_BACKEND", "Relax_Heavy")
    assert load()["relax-heavy"].status == "ok"


@pytest.mark.parametrize(
    ("variable", "value", "disabled"),
    [
        ("RELAX_PLUGINS_DISABLE", "relax-one, relax-two", {"relax-one", "relax-two"}),
        ("RELAX_PLUGINS", "relax-two", {"relax-one", "relax-algos"}),
        ("RELAX_PLUGINS", "", set()),
    ],
)
def test_disabled_plugins_are_not_imported(
    site: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, disabled: set[str]
) -> None:
    install_source("relax-one", algorithm("one"), site)
    install_source("relax-two", algorithm("two"), site)
    monkeypatch.setenv(variable, value)
    loaded = load()
    assert {name for name, plugin in loaded.items() if plugin.status == "disabled"} >= disabled
    assert loaded["relax-core"].status == "ok"
    for name in ("relax-one", "relax-two"):
        assert (f"{name.replace('-', '_')}.plugin" in sys.modules) == (name not in disabled)
        assert loaded[name].detail == (variable_reason(variable) if name in disabled else "")


def variable_reason(variable: str) -> str:
    return {"RELAX_PLUGINS": "not in RELAX_PLUGINS", "RELAX_PLUGINS_DISABLE": "by RELAX_PLUGINS_DISABLE"}[variable]


def test_an_unknown_name_in_a_variable_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("RELAX_PLUGINS_DISABLE", "relax-algo")
    load()
    assert caplog.messages == [
        "RELAX_PLUGINS_DISABLE: no plugin 'relax-algo' is installed; did you mean 'relax-algos'?"
    ]


def test_a_plugin_that_is_installed_twice_is_not_imported(site: Path, tmp_path: Path) -> None:
    install_source("relax-twice", "raise AssertionError", site)
    with importable(tmp_path / "other"):
        install_source("relax-twice", "raise AssertionError", tmp_path / "other", version="2.0")
        twice = load()["relax-twice"]
    assert twice.status == "shadowed"
    assert f"2.0 in {tmp_path / 'other'}" in twice.detail
    assert f"1.0 in {site}" in twice.detail


def test_a_folder_that_is_twice_on_the_path_shadows_nothing(site: Path) -> None:
    install_source("relax-once", algorithm("once"), site)
    with importable(site):
        assert load()["relax-once"].status == "ok"


def test_damaged_metadata_is_reported(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_source("relax-damaged", algorithm("damaged"), site)
    (site / "relax_damaged-1.0.dist-info" / "METADATA").unlink()
    assert "relax-damaged" not in load()
    assert str(site) in caplog.text


def test_a_name_that_two_plugins_offer_must_be_qualified(site: Path) -> None:
    for name in ("relax-one", "relax-two"):
        install_source(name, algorithm("same"), site)
    loaded = Registry.load()
    with pytest.raises(ConfigError, match="'same' is offered by relax-one and relax-two; write relax-one/same"):
        loaded.find("algorithms", "same")
    assert loaded.find("algorithms", "relax-two/same").plugin.name == "relax-two"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("algorithms", "grop", "no algorithm 'grop'; did you mean 'grpo'?"),
        ("weight_syncs", "remote", "no weight_sync 'remote' (installed: "),
        ("rewards", "relax-cor/exact", "no plugin 'relax-cor'; did you mean 'relax-core'?"),
        ("rewards", "relax-core/exacd", "no reward 'exacd' in relax-core; did you mean 'exact'?"),
        ("trainers", "relax-algos/torch", "no trainer 'torch' in relax-algos"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(kind: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Registry.load().find(kind, name)
    assert str(caught.value).startswith(message)


def test_a_well_known_name_is_answered_with_what_to_install() -> None:
    without_algorithms = Registry([plugin for plugin in Registry.load().plugins if plugin.name == "relax-core"])
    with pytest.raises(ConfigError, match="no algorithm 'grpo'; it comes with relax-algos: pip install relax-algos"):
        without_algorithms.find("algorithms", "grpo")


def test_a_well_known_name_of_a_broken_plugin_blames_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_PLUGINS_DISABLE", "relax-algos")
    with pytest.raises(PluginError, match=r"relax-algos is not usable \(disabled\): by RELAX_PLUGINS_DISABLE"):
        Registry.load().find("algorithms", "grpo")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("does_not_exist:A", "ModuleNotFoundError"),
        ("relax_core.registry:Registri", "AttributeError"),
        ("antigravity_exit:A", "SystemExit: 1"),
    ],
)
def test_a_target_that_cannot_be_imported_is_a_plugin_error(site: Path, target: str, reason: str) -> None:
    (site / "antigravity_exit.py").write_text("raise SystemExit(1)")
    with pytest.raises(PluginError, match=f"cannot import {target}: {reason}"):
        load_target(target)


def test_a_process_loads_plugins_once() -> None:
    assert registry() is registry()
