"""Every kind has a suite for installed components, an abstract class that is checked, and a scaffold."""

from importlib import resources

from relax_core.hooks import KINDS, section
from relax_core.registry import load_target
from relax_core.testing.import_check import BASES
from relax_core.testing.installed import SUITES


def test_every_kind_can_be_checked_and_made() -> None:
    assert set(SUITES) == set(BASES) == set(KINDS)
    assert all(isinstance(load_target(base), type) for base in BASES.values())
    templates = resources.files("relax_core.scaffold") / "templates"
    folders = {folder.name for folder in templates.iterdir() if folder.is_dir()}
    assert folders == {"project", *map(section, KINDS)}
