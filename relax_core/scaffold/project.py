"""Writes a new plugin into a folder of its own."""

import keyword
import re
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from string import Template

from packaging.utils import canonicalize_name

from relax_core._version import __version__
from relax_core.api.errors import ConfigError
from relax_core.config.sections import SECTIONS
from relax_core.config.suggest import path_suggestion
from relax_core.hooks import KINDS, section
from relax_core.registry import registry
from relax_core.suggestions import did_you_mean

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def create_plugin(name: str, kind: str, directory: Path) -> list[Path]:
    """Writes ``directory/name`` with one component of a kind that works, its settings, its tests and a readme.

    Args:
        name: Of the distribution: ``relax-myalgo`` gives the package ``relax_myalgo`` and the component ``myalgo``.
        kind: ``algorithm``, ``weight_sync``, ...
        directory: An existing folder.

    Returns:
        The files, the component's first.

    Raises:
        ConfigError: The name or the kind is not possible, or something is in the way.
    """
    kinds = {section(known): known for known in KINDS}
    if kind not in kinds:
        raise ConfigError(f"--kind: there is no kind {kind!r}{did_you_mean(kind, kinds)} (kinds: {', '.join(kinds)})")
    words = _words(name, kinds[kind])
    project = directory / name
    if not directory.is_dir():
        raise ConfigError(f"--dir: {directory} is no folder{path_suggestion(directory)}")
    if project.exists():
        raise ConfigError(f"{project} is there already; nothing was written")
    files = _files(words)
    try:
        for place, text in files.items():
            path = project / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    return [project / place for place in files]


def _words(name: str, kind: str) -> dict[str, str]:
    """What the templates are filled with, apart from the summary."""
    if not NAME.fullmatch(name):
        right = canonicalize_name(name)
        hint = f"; did you mean {right!r}?" if NAME.fullmatch(right) else ""
        raise ConfigError(f"{name!r} is no name for a plugin{hint} (small letters, digits and hyphens: relax-mine)")
    package, component = name.replace("-", "_"), name.removeprefix("relax-").replace("-", "_")
    if keyword.iskeyword(package) or find_spec(package) is not None:
        raise ConfigError(f"{name!r}: there is a package {package!r} already; choose another name")
    for found in registry().offers(kind):
        if found.component.name == component:
            raise ConfigError(
                f"{name!r}: {section(kind)} {component!r} is one of {found.plugin.name}; choose another name"
            )
    key = next(known.key for known in SECTIONS if known.kind == kind)
    noun = section(kind).replace("_", " ")
    major, minor = __version__.split(".")[:2]
    return {
        "distribution": name,
        "package": package,
        "component": component,
        "class_name": _camel(component.removesuffix(section(kind))) + _camel(section(kind)),
        "kind": kind,
        "section": section(kind),
        "noun": noun,
        "key": ".".join(key),
        "requirement": f"relax-core>={major}.{minor},<{major}.{int(minor) + 1}",
    }


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _files(words: dict[str, str]) -> dict[str, str]:
    """Text of each file by its place in the project."""
    templates = resources.files("relax_core.scaffold") / "templates"
    own, shared = templates / words["section"], templates / "project"
    component = _filled(own / "component.py.template", words)
    words = {**words, "summary": component.partition('"""')[2].partition('"""')[0]}
    package = words["package"]
    return {
        f"{package}/{words['section']}.py": component,
        f"{package}/config.py": _filled(own / "config.py.template", words),
        f"{package}/plugin.py": _filled(shared / "plugin.py.template", words),
        f"{package}/__init__.py": "",
        f"tests/test_{words['component']}.py": _filled(own / "test.py.template", words),
        "tests/conftest.py": _filled(shared / "conftest.py.template", words),
        "pyproject.toml": _filled(shared / "pyproject.toml.template", words),
        "README.md": _filled(shared / "README.md.template", words),
    }


def _filled(template: Traversable, words: dict[str, str]) -> str:
    return Template(template.read_text(encoding="utf-8")).substitute(words)
