"""Every project folder builds, and what it builds holds what it should."""

import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECTS = sorted(path.parent for path in [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")])


def name_of(project: Path) -> str:
    return str(tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"])


@pytest.mark.parametrize("project", PROJECTS, ids=name_of)
def test_a_wheel_that_goes_through_a_source_archive_holds_one_package_and_its_entry_point(
    project: Path, tmp_path: Path
) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, project], check=True, timeout=120
    )
    package = name_of(project).replace("-", "_")
    (wheel,) = tmp_path.glob("*.whl")
    (archive,) = tmp_path.glob("*.tar.gz")
    version = metadata.version("relax-core")
    assert (wheel.name, archive.name) == (f"{package}-{version}-py3-none-any.whl", f"{package}-{version}.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {package, f"{package}-{version}.dist-info"}
    files = (path for path in (project / package).rglob("*") if path.is_file() and path.suffix != ".pyc")
    sources = {path.relative_to(project).as_posix() for path in files}
    assert {name for name in names if name.startswith(f"{package}/")} == sources
    entry_points = zipfile.ZipFile(wheel).read(f"{package}-{version}.dist-info/entry_points.txt").decode()
    assert f"{package}.plugin" in entry_points


def test_constraints_pin_every_requirement_to_a_version_that_it_allows() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    required = [Requirement(line) for project in PROJECTS for line in metadata.requires(name_of(project)) or ()]
    for requirement in required:
        name = canonicalize_name(requirement.name)
        if name not in [name_of(project) for project in PROJECTS]:
            assert requirement.specifier.contains(pins[name]), f"{requirement}, but constraints.txt has {pins[name]}"
