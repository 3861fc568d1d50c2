"""docs/parity.md tells of every case and of no other; the options in docs/migration.md exist."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from plugins.relax_algos.tests.parity import test_differences
from plugins.relax_algos.tests.parity.cases import ADVANTAGES, LOSSES
from plugins.relax_algos.tests.parity.report import line
from relax_core.config.schema import run_schema

DOCS = Path(__file__).parents[4] / "docs"
PARITY = (DOCS / "parity.md").read_text(encoding="utf-8")
MIGRATION = (DOCS / "migration.md").read_text(encoding="utf-8")


def options(peer: str) -> list[tuple[str, str]]:
    """The first two columns of a peer's table of options."""
    (section,) = [part for part in MIGRATION.split("\n## ") if part.startswith(f"{peer}\n")]
    return re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", section, re.MULTILINE)


def keys(schema: Mapping[str, Any], node: Any, depth: int = 3) -> Iterator[str]:
    """Names of all settings below a node of a JSON schema, with dots."""
    if not isinstance(node, Mapping):  # what is refused
        return
    if "$ref" in node:
        yield from keys(schema, schema["$defs"][node["$ref"].rpartition("/")[2]], depth)
    for part in ("anyOf", "oneOf", "allOf"):
        for variant in node.get(part, ()):
            yield from keys(schema, variant, depth)
    if "items" in node:
        yield from keys(schema, node["items"], depth)
    for name, below in node.get("properties", {}).items() if depth else ():
        yield name
        yield from (f"{name}.{rest}" for rest in keys(schema, below, depth - 1))


def test_every_case_is_on_the_page_and_every_line_of_the_page_is_a_case() -> None:
    shown = re.findall(r"^(\| (?:TRL|verl) \| `[^`]+` \| `[^`]+` \|) \d", PARITY, re.MULTILINE)
    assert shown == [line(case) for case in [*LOSSES, *ADVANTAGES]], "run report.py and put what it prints on the page"


def test_every_difference_is_on_the_page_and_every_difference_of_the_page_is_tested() -> None:
    tests = [name for name in vars(test_differences) if name.startswith("test_")]
    assert re.findall(r"`(test_\w+)` \|$", PARITY, re.MULTILINE) == tests


def test_our_options_exist() -> None:
    schema = run_schema()
    known = set(keys(schema, schema))
    named = [ours for peer in ("TRL", "verl", "The first Relax") for _, ours in options(peer)]
    assert len(named) > 100
    assert [ours for ours in named if ours.partition(":")[0] not in known] == []


@pytest.mark.usefixtures("peers")
def test_their_options_exist() -> None:
    import verl
    from omegaconf import OmegaConf
    from trl import DPOConfig, GRPOConfig

    assert {metadata.version("trl"), metadata.version("verl")} == {"1.16.0", "0.9.1"}
    known = {each.name for each in [*fields(GRPOConfig), *fields(DPOConfig)]}
    assert [theirs for theirs, _ in options("TRL") if theirs not in known] == []
    path = Path(verl.__file__).parent / "trainer/config/_generated_ppo_trainer.yaml"
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert [theirs for theirs, _ in options("verl") if not has(config, theirs)] == []


def has(node: Any, key: str) -> bool:
    """Whether nested mappings have a key with dots."""
    name, _, rest = key.partition(".")
    return name in node and (not rest or has(node[name], rest))
