"""Installs small plugins into a folder of their own, for tests of everything that looks for plugins.

Each is built into a real wheel and unpacked, which is all that installing pure Python code is.
"""

import importlib
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

RLOO = Path(__file__).parent / "relax_rloo"
"""A complete plugin as a third party would write it."""

IMPORTS = "from relax_core import Component, hookimpl\n"


def algorithm(name: str) -> str:
    """Source of a ``plugin.py`` that registers one algorithm, whose class does not exist."""
    return f"{IMPORTS}@hookimpl\ndef relax_algorithms():\n    return [Component({name!r}, 'nowhere:A', 'nowhere:B')]\n"


def install(project: Path, target: Path) -> None:
    """Builds the project's wheel and unpacks it into ``target``."""
    wheel = next(WheelBuilder(str(project)).build(directory=str(target.parent / "wheels"), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    importlib.invalidate_caches()


def install_source(
    name: str,
    source: str,
    target: Path,
    *,
    version: str = "1.0",
    dependencies: tuple[str, ...] = (),
    backend: tuple[str, ...] = (),
    other_backend: tuple[str, ...] = (),
) -> None:
    """Installs a plugin of which only ``plugin.py`` matters.

    Args:
        name: Of the distribution; the package is named alike.
        source: Of ``plugin.py``.
        target: Folder to install into.
        version: Of the distribution.
        dependencies: Requirement lines.
        backend: Requirement lines of the extra ``backend``.
        other_backend: Requirement lines of an extra ``backend-other``, which would do instead.
    """
    project = target.parent / f"source-{name}-{version}"
    package = name.replace("-", "_")
    (project / package).mkdir(parents=True)
    (project / package / "__init__.py").touch()
    (project / package / "plugin.py").write_text(source)
    (project / "pyproject.toml").write_text(
        f"""
        [project]
        name = "{name}"
        version = "{version}"
        dependencies = {list(dependencies)}
        optional-dependencies.backend = {list(backend)}
        {f"optional-dependencies.backend-other = {list(other_backend)}" if other_backend else ""}
        entry-points.relax.{package.removeprefix("relax_")} = "{package}.plugin"
        """
    )
    install(project, target)


@contextmanager
def importable(target: Path) -> Iterator[None]:
    """Puts a folder first on the import path of this process, and forgets what was imported from it at the end."""
    target.mkdir(exist_ok=True)
    sys.path.insert(0, str(target))
    try:
        yield
    finally:
        sys.path.remove(str(target))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(target)):
                del sys.modules[name]
