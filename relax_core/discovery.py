"""Finds the installed plugins and loads each on its own: a broken one is listed with its reason and harms no other.

A plugin is an installed distribution with an entry point in the group ``relax``; it is named by its distribution, so
what ``pip install`` takes is what ``RELAX_PLUGINS_DISABLE`` takes. pluggy's own loader is not used: it stops at the
first broken plugin and silently drops duplicates.

Environment variables, each a list of distribution names separated by commas:

- ``RELAX_PLUGINS``: only these, and relax-core, are imported (all, when unset or empty).
- ``RELAX_PLUGINS_DISABLE``: these are not imported.
- ``RELAX_ASSUME_BACKEND``: the backend of these is taken as installed, for backends without package metadata.
"""

import contextlib
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pluggy import PluginManager

from relax_core import hooks
from relax_core._version import __version__
from relax_core.api.errors import PluginError
from relax_core.component import PROJECT, Component
from relax_core.suggestions import did_you_mean

CORE = "relax-core"
BACKEND_EXTRA = "backend"
Status = Literal["ok", "no backend", "disabled", "incompatible", "shadowed", "error"]
log = logging.getLogger(__name__)
_TARGET = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True)
class PluginRecord:
    """What became of one plugin.

    Args:
        name: Name of the distribution, normalised (``relax-algos``).
        version: Version of the distribution.
        status: ``ok`` is usable. ``no backend``: packages of its extra ``backend`` are missing, and of every extra
            ``backend-...`` that would do instead. ``disabled``: by an environment variable. ``incompatible``: needs
            another relax-core. ``shadowed``: installed more than once, so what would be imported is a matter of
            chance. ``error``: could not be loaded.
        detail: Why it is not ``ok``, and what to do.
        components: By kind; empty unless the status is ``ok`` or ``no backend``.
        entry_points: Names of its entry points.
        requirements: Requirement lines from its metadata.
        load_ms: Time to check, import and ask it, in milliseconds.
        traceback: Of an ``error``.
    """

    name: str
    version: str
    status: Status = "ok"
    detail: str = ""
    components: dict[str, list[Component]] = field(default_factory=dict)
    entry_points: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    load_ms: float = 0.0
    traceback: str = ""


@dataclass(frozen=True)
class Switches:
    """The environment variables of this module, as normalised names."""

    allowed: frozenset[str]
    disabled: frozenset[str]
    assume_backend: frozenset[str]


def discover() -> list[PluginRecord]:
    """Loads all installed plugins; never fails because of one of them. Sorted by name."""
    # A folder that is on the path twice would otherwise make each of its plugins look installed twice.
    path = list(dict.fromkeys(os.path.realpath(entry) for entry in sys.path))
    names = sorted(_plugin_names(path))
    switches = Switches(
        allowed=_names_in("RELAX_PLUGINS", names),
        disabled=_names_in("RELAX_PLUGINS_DISABLE", names),
        assume_backend=_names_in("RELAX_ASSUME_BACKEND", names),
    )
    return [_load(name, list(metadata.distributions(name=name, path=path)), switches) for name in names]


def _plugin_names(path: list[str]) -> set[str]:
    names: set[str] = set()
    for distribution in metadata.distributions(path=path):
        if f"[{PROJECT}]" in (distribution.read_text("entry_points.txt") or ""):
            name = distribution.metadata["Name"]
            if name:
                names.add(canonicalize_name(name))
            else:
                log.warning(
                    "ignored a plugin without a name in %s: its metadata is damaged", distribution.locate_file("")
                )
    return names


def _names_in(variable: str, installed: Collection[str]) -> frozenset[str]:
    words = os.environ.get(variable, "").replace(",", " ").split()
    names = frozenset(canonicalize_name(word) for word in words)
    for name in sorted(names.difference(installed)):
        log.warning("%s: no plugin %r is installed%s", variable, name, did_you_mean(name, installed))
    return names


def _load(name: str, distributions: Sequence[metadata.Distribution], switches: Switches) -> PluginRecord:
    began = time.perf_counter()
    distribution = distributions[0]
    entry_points = distribution.entry_points.select(group=PROJECT)
    status: Status
    components: dict[str, list[Component]] = {}
    trace = ""
    try:
        status, detail = _verdict(name, distributions, switches)
        if status in ("ok", "no backend"):
            components = _components(entry_points)
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())
        status, detail = "error", reason if isinstance(error, PluginError) else f"{type(error).__name__}: {reason}"
        trace = traceback.format_exc()
    return PluginRecord(
        name=name,
        version=distribution.version,
        status=status,
        detail=detail,
        components=components,
        entry_points=tuple(entry_points.names),
        requirements=tuple(distribution.requires or ()),
        load_ms=1000 * (time.perf_counter() - began),
        traceback=trace,
    )


def _verdict(name: str, distributions: Sequence[metadata.Distribution], switches: Switches) -> tuple[Status, str]:
    """Status and detail by metadata alone, before anything is imported."""
    if name in switches.disabled:
        return "disabled", "by RELAX_PLUGINS_DISABLE"
    if switches.allowed and name not in switches.allowed and name != CORE:
        return "disabled", "not in RELAX_PLUGINS"
    if len(distributions) > 1:
        places = " and ".join(f"{record.version} in {record.locate_file('')}" for record in distributions)
        return "shadowed", f"{len(distributions)} records, {places}: uninstall all but one"
    requirements = [Requirement(line) for line in distributions[0].requires or ()]
    for requirement in requirements:
        if canonicalize_name(requirement.name) == CORE and not _accepts(requirement, __version__):
            return "incompatible", f"needs {CORE}{requirement.specifier}, this is {__version__}"
    return ("ok", "") if name in switches.assume_backend else _backend_verdict(name, distributions[0], requirements)


def _backend_verdict(
    name: str, distribution: metadata.Distribution, requirements: Sequence[Requirement]
) -> tuple[Status, str]:
    extras = [extra for extra in distribution.metadata.get_all("Provides-Extra") or () if _is_backend(extra)]
    missing = {extra: _missing(requirements, extra) for extra in extras}
    if not missing or not all(missing.values()):
        return "ok", ""
    ways = [f'missing {", ".join(wanted)}: pip install "{name}[{extra}]"' for extra, wanted in missing.items()]
    return "no backend", "; or ".join(ways)


def _is_backend(extra: str) -> bool:
    return extra == BACKEND_EXTRA or extra.startswith(f"{BACKEND_EXTRA}-")


def _missing(requirements: Sequence[Requirement], extra: str) -> list[str]:
    """What an extra asks for that is not installed."""
    missing = []
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(wanted)
        else:
            if not _accepts(requirement, version):
                missing.append(f"{wanted} ({version} is installed)")
    return missing


def _accepts(requirement: Requirement, version: str) -> bool:
    return requirement.specifier.contains(version, prereleases=True)


def _components(entry_points: metadata.EntryPoints) -> dict[str, list[Component]]:
    """Imports a plugin and asks its hooks.

    It gets a plugin manager of its own, which is dropped afterwards: whatever goes wrong, nothing stays registered.
    """
    manager = PluginManager(PROJECT)
    manager.add_hookspecs(hooks)
    # What a plugin prints while it is imported must not end up in the output of a command.
    with contextlib.redirect_stdout(sys.stderr):
        for entry_point in entry_points:
            manager.register(entry_point.load(), name=entry_point.value)
        return _ask(manager)


def _ask(manager: PluginManager) -> dict[str, list[Component]]:
    known = [f"{PROJECT}_{kind}" for kind in hooks.KINDS]
    implemented = {
        caller.name: caller for plugin in manager.get_plugins() for caller in manager.get_hookcallers(plugin) or ()
    }
    if not implemented:
        raise PluginError("implements no hook: mark its functions with @hookimpl")
    for name in implemented:
        if name not in known:
            raise PluginError(f"unknown hook {name}{did_you_mean(name, known)}")
    return {
        kind: _checked(name, implemented[name]())
        for kind, name in zip(hooks.KINDS, known, strict=True)
        if name in implemented
    }


def _checked(hook: str, answers: list[Any]) -> list[Component]:
    """The components in the answers of a hook; pluggy leaves out an answer that is None."""
    if not answers or not all(isinstance(answer, list) for answer in answers):
        raise PluginError(f"{hook} must return a list of components")
    components = [component for answer in answers for component in answer]
    for component in components:
        if not isinstance(component, Component):
            raise PluginError(f"{hook} returned {component!r}, which is not a Component")
        for text in (component.target, component.config):
            if not _TARGET.fullmatch(text):
                raise PluginError(f"{hook}: {component.name!r} has {text!r} where 'package.module:Class' belongs")
    names = [component.name for component in components]
    for name in names:
        if "/" in name or names.count(name) > 1:
            raise PluginError(f"{hook}: the name {name!r} is given twice or holds a slash")
    return components
