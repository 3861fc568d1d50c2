"""Versions of what computes a run's numbers: every process has the controller's, or says what it has. Imports no torch.

Versions are those of installed distributions, without the local part: builds for another accelerator are the same.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from relax_core.api.errors import PluginError
from relax_core.config.load import RunConfig

PYTHON = "Python"
ALWAYS = (PYTHON, "relax-core", "torch", "transformers")
MISSING = "none"


def versions(config: RunConfig) -> dict[str, str]:
    """What is installed here of Python, relax-core, torch, transformers and the plugins that a run's roles need."""
    components = (config.algorithm, config.trainer, config.engine, config.transport, config.weight_sync, config.dataset)
    return installed(sorted({*ALWAYS, *(selected.plugin for selected in (*components, *config.rewards))}))


def installed(names: Iterable[str]) -> dict[str, str]:
    """Versions by name; :data:`MISSING` of what is not installed."""
    return {name: _version(name) for name in names}


def look(names: Sequence[str], directory: str) -> tuple[dict[str, str], bool]:
    """What is installed on the node that this runs on, and whether it sees a folder."""
    return installed(names), Path(directory).is_dir()


def check_versions(expected: Mapping[str, str], where: str) -> None:
    """Compares what is installed here with what the controller has.

    Args:
        expected: The controller's :func:`versions`.
        where: Names this process in the message.

    Raises:
        PluginError: Names everything that differs.
    """
    refuse_difference(expected, installed(expected), where)


def refuse_difference(expected: Mapping[str, str], found: Mapping[str, str], where: str) -> None:
    """Raises :class:`PluginError` unless both are the same."""
    different = [f"{name} {found[name]}, not {version}" for name, version in expected.items() if found[name] != version]
    if different:
        raise PluginError(f"{where} has {'; '.join(different)}: install there what the controller has")


def _version(name: str) -> str:
    if name == PYTHON:
        return ".".join(map(str, sys.version_info[:2]))
    try:
        return Version(metadata.version(name)).public
    except metadata.PackageNotFoundError:
        return MISSING
