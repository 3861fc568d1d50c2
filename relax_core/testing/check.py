"""Checks an installed plugin as ``relax plugins check`` does: each level in a process of its own."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from relax_core.api.errors import ConfigError, PluginError, RelaxError
from relax_core.component import Component
from relax_core.config.overrides import apply_overrides
from relax_core.config.problems import Problems
from relax_core.config.sections import SECTIONS
from relax_core.config.selection import config_class
from relax_core.config.validation import validate
from relax_core.discovery import PluginRecord
from relax_core.hooks import section
from relax_core.suggestions import did_you_mean
from relax_core.testing.findings import Finding, Outcome
from relax_core.testing.import_check import title

LEVELS = ("import", "unit", "device")
NEEDED = ("pytest", "pytest_asyncio", "pytest_timeout")
DEADLINE = 3600.0
"""Seconds for one level of all components of a plugin."""
RULE_SECONDS = 300
"""Seconds for one rule of a suite."""
CALM = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0", "HF_HUB_OFFLINE": "1"}
"""Environment of the suites: tiny models need no threads and no network."""
PYTEST_INI = f"""[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
timeout = {RULE_SECONDS}
"""
IMPORTS = "from relax_core.testing.installed import Subject, suite"

Settings = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By section and component."""


def check_plugin(plugin: PluginRecord, level: str, overrides: Sequence[str]) -> list[Finding]:
    """Everything up to a level; a component that fails at one is not tried at the next.

    Args:
        plugin: What the registry says of it.
        level: One of :data:`LEVELS`.
        overrides: Settings, each ``section.component.key=value``.

    Raises:
        ConfigError: The level or a setting is wrong, pytest is not installed, or there is no accelerator.
        PluginError: The plugin cannot be used.
    """
    if level not in LEVELS:
        raise ConfigError(f"--level: there is no {level!r}{did_you_mean(level, LEVELS)} (levels: {', '.join(LEVELS)})")
    if plugin.status != "ok":
        raise PluginError(f"plugin {plugin.name} is not usable ({plugin.status}): {plugin.detail}")
    settings = _settings(plugin, overrides)
    if level != "import":
        _require_pytest()
    device = _accelerator() if level == "device" else "cpu"
    findings = _import_findings(plugin)
    if level == "import":
        return findings
    broken = {finding.subject for finding in findings if finding.outcome == "failed"}
    return [*findings, *_suite_findings(plugin, level, device, settings, broken)]


def _settings(plugin: PluginRecord, overrides: Sequence[str]) -> Settings:
    """The settings given, checked.

    Raises:
        ConfigError: One is for no component of the plugin, or the component refuses it.
    """
    given, _ = apply_overrides({}, overrides)
    known = {section(kind): [each.name for each in found] for kind, found in plugin.components.items()}
    for place, components in given.items():
        if place not in known:
            raise ConfigError(f"--set {place}: {plugin.name} has none{did_you_mean(place, known)}")
        if not isinstance(components, Mapping):
            raise ConfigError(f"--set {place}: write {place}.{known[place][0]}.key=value")
        for name in components:
            if name not in known[place]:
                raise ConfigError(
                    f"--set {place}.{name}: {plugin.name} has no such {place}{did_you_mean(name, known[place])}"
                )
    problems = Problems("--set", given)
    for kind, found in plugin.components.items():
        for component in found:
            own = given.get(section(kind), {}).get(component.name)
            if own is not None:
                validate(_config(kind, component), own, (section(kind), component.name), problems, {})
    problems.raise_if_any()
    return given


def _config(kind: str, component: Component) -> Any:
    return config_class(component, next(known.base for known in SECTIONS if known.kind == kind))


def _require_pytest() -> None:
    missing = [name.replace("_", "-") for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f'the contract suites need {", ".join(missing)}: pip install "relax-core[test]"')


def _accelerator() -> str:
    from relax_core.runtimes.device import resolve_device

    device = resolve_device("auto")
    if device == resolve_device("cpu"):
        raise ConfigError("--level device: torch finds no accelerator on this machine")
    return device


def _import_findings(plugin: PluginRecord) -> list[Finding]:
    # The only plugin there: what another one imports is not its fault.
    ended = _python("relax_core.testing.import_check", plugin.name, RELAX_PLUGINS=plugin.name)
    findings = [Finding(**json.loads(line)) for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        findings.append(Finding("import", plugin.name, "the process ended", "failed", last))
    return findings


def _suite_findings(
    plugin: PluginRecord, level: str, device: str, settings: Settings, broken: set[str]
) -> list[Finding]:
    """What the suites of all components that can be built say."""
    findings: list[Finding] = []
    suites: dict[str, str] = {}
    for kind, components in plugin.components.items():
        for component in components:
            name, own = title(kind, component), settings.get(section(kind), {}).get(component.name, {})
            obstacle = "cannot be imported" if name in broken else _missing_settings(kind, component, own)
            if obstacle:
                findings.append(Finding(level, name, "contract", "skipped", obstacle))
            else:
                subject = (kind, f"{plugin.name}/{component.name}", dict(own), device)
                suites[name] = f"suite(Subject(*{subject!r}))"
    return findings + (_run(level, suites) if suites else [])


def _missing_settings(kind: str, component: Component, own: Mapping[str, Any]) -> str:
    fields = _config(kind, component).model_fields
    missing = [key for key, field in fields.items() if field.is_required() and key not in own]
    return f"needs settings: --set {section(kind)}.{component.name}.{missing[0]}=..." if missing else ""


def _run(level: str, suites: Mapping[str, str]) -> list[Finding]:
    """Runs suites, given by the title of their component as Python expressions."""
    classes = "".join(f"Test{number} = {expression}\n" for number, expression in enumerate(suites.values()))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "pytest.ini").write_text(PYTEST_INI, encoding="utf-8")
        (place / "test_installed.py").write_text(f"{IMPORTS}\n{classes}", encoding="utf-8")
        report = place / "report.xml"
        own = ("-c", place / "pytest.ini", "--rootdir", place, "-p", "no:cacheprovider")
        ended = _python("pytest", *own, f"--junitxml={report}", place / "test_installed.py")
        if ended.returncode not in (0, 1) or not report.exists():
            last = (ended.stdout + ended.stderr).strip().splitlines()[-1:]
            raise RelaxError(f"the contract suites did not run: {' '.join(last)}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return [_finding(level, case, list(suites)) for case in cases]


def _finding(level: str, case: ElementTree.Element, titles: Sequence[str]) -> Finding:
    suite = case.get("classname", "").rpartition(".Test")[2]
    subject = titles[int(suite)] if suite.isdecimal() else "contract"
    rule = case.get("name", "").removeprefix("test_").replace("_", " ")
    outcome: Outcome = "ok"
    detail = ""
    for child in case:
        if child.tag in ("failure", "error"):
            outcome, detail = "failed", child.get("message", "").removeprefix("AssertionError: ")
        elif child.tag == "skipped":
            outcome, detail = "skipped", child.get("message", "")
    return Finding(level, subject, rule, outcome, detail.partition("\n")[0])


def _python(module: str, *arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Runs a module; what lies in the present folder is not imported in place of what is installed."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", module, *arguments],
            check=False,
            env={**CALM, **ours, **variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
    except subprocess.TimeoutExpired as error:
        raise RelaxError(f"the check of the plugin did not end within {DEADLINE:.0f} s") from error
