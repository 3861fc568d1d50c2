"""From a YAML file and overrides to a checked run. Imports no torch.

Whatever is written is checked, and whatever is wrong is reported together: first names, types and ranges, each key on
its own; then, if these are right, what keys ask of one another (:mod:`relax_core.config.checks`).
"""

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from relax_core.api.errors import ConfigError
from relax_core.config.checks import check
from relax_core.config.document import read_document
from relax_core.config.environment import misspelt_variables
from relax_core.config.overrides import apply_overrides
from relax_core.config.problems import Key, Problems
from relax_core.config.run import EvalSetConfig, RunSections
from relax_core.config.run_config import EvalSet, RunConfig
from relax_core.config.sections import DEFAULT_SINKS, SECTIONS, Section, places, section_at
from relax_core.config.selection import Selected, select
from relax_core.config.validation import validate

__all__ = ["RunConfig", "Selected", "load_run"]

_Selection = dict[Key, tuple[Selected, ...]]


def load_run(path: Path | None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None) -> RunConfig:
    """Reads, changes and checks a configuration.

    Args:
        path: A YAML file.
        overrides: ``key.sub=value`` each, applied in order; see :mod:`relax_core.config.overrides`.
        base: The configuration as plain data, in place of a file.

    Raises:
        ConfigError: Something is wrong; a line for each problem.
        PluginError: A selected component belongs to a plugin that cannot be used.
    """
    for warning in misspelt_variables():
        print(f"warning: {warning}", file=sys.stderr)
    if (path is None) == (base is None):
        raise ConfigError("command line: a run is either a configuration file or given by options")
    source = "command line" if path is None else str(path)
    document, replaced = apply_overrides(read_document(path) if path is not None else base or {}, overrides)
    problems = Problems(source, document)
    plain, components = _split(document)
    run = validate(RunSections, plain, (), problems, _beside(document))
    selected = _select_all(components, problems, replaced)
    problems.raise_if_any()
    assert run is not None, "without a problem there is a result"
    _require(run, selected, problems)
    problems.raise_if_any()
    config = _assemble(source, run, selected)
    for key, text in check(config):
        problems.add(key, text)
    problems.raise_if_any()
    return config


def _beside(document: Mapping[str, Any]) -> dict[Key, list[str]]:
    """Keys of component sections, by the section they stand in."""
    beside: dict[Key, list[str]] = {}
    for section in SECTIONS:
        for key in places(section, document):
            beside.setdefault(key[:-1], []).append(key[-1])
    return beside


def _split(document: dict[str, Any]) -> tuple[dict[str, Any], dict[Key, Any]]:
    """Separates the component sections, with their defaults, from the rest. One that is null counts as absent."""
    plain = deepcopy(document)
    components: dict[Key, Any] = {}
    for section in SECTIONS:
        for key in places(section, document):
            holder: Any = plain
            for part in key[:-1]:
                holder = holder.get(part) if isinstance(holder, dict) else None
            value = holder.pop(key[-1], None) if isinstance(holder, dict) else None
            if value is None and len(key) == 1:
                value = list(DEFAULT_SINKS) if section.kind == "sinks" else section.default
            if value is not None:
                components[key] = value
    warmup = plain.get("warmup")
    if isinstance(warmup, dict) and warmup.get("updates"):
        components.setdefault(("warmup", "algorithm"), "sft")
        components.setdefault(("warmup", "trainer"), {})
    if ("warmup", "trainer") in components:
        trainers = _as_mapping(components[("trainer",)]), _as_mapping(components[("warmup", "trainer")])
        components[("warmup", "trainer")] = _merged(*trainers)
    return plain, components


def _as_mapping(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _merged(below: Any, above: Any) -> Any:
    """Two values as one: mappings key by key, otherwise the one above."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merged(below.get(key), value) for key, value in above.items()}


def _select_all(components: dict[Key, Any], problems: Problems, replaced: dict[Key, str]) -> _Selection:
    selected: _Selection = {}
    for key, value in components.items():
        # What is wrong with the run's trainer is reported there, not again in the warm-up's copy.
        if key != ("warmup", "trainer") or selected[("trainer",)]:
            selected[key] = _select_section(key, value, problems, replaced)
    return selected


def _select_section(key: Key, value: Any, problems: Problems, replaced: dict[Key, str]) -> tuple[Selected, ...]:
    section = _section(key)
    items: list[tuple[Key, Any]] = [(key, value)]
    if section.many and isinstance(value, list):
        items = [((*key, index), item) for index, item in enumerate(value)]
        if not items and section.kind == "rewards":
            problems.add(key, "[] selects no reward; leave the key out instead")
    found = [select(section, place, item, problems, replaced.get(place)) for place, item in items]
    return tuple(selected for selected in found if selected is not None)


def _section(key: Key) -> Section:
    section = section_at(key)
    assert section is not None, "components are split off at the places of sections"
    return section


def _require(run: RunSections, selected: _Selection, problems: Problems) -> None:
    """Refuses a missing dataset, both forms of an evaluation at once, and a warm-up whose length is not given."""
    held_out = [_of_set(name, "dataset") for name in run.eval.settings()] if run.eval is not None else []
    for key in (("dataset",), *held_out):
        if key not in selected:
            select(_section(key), key, {}, problems)
    if run.eval is not None and run.eval.sets and ("eval", "dataset") in selected:
        text = "stands beside `eval.sets`, and an evaluation has one set or several; make it a set, with a name"
        problems.add(("eval", "dataset"), text)
    warmup_written = run.warmup.model_fields_set or any(key[0] == "warmup" for key in selected)
    if warmup_written and "updates" not in run.warmup.model_fields_set:
        problems.add(("warmup", "updates"), "missing; without it there is no warm-up")


def _of_set(name: str, part: str) -> Key:
    """Where a part of an evaluation's set stands; the only set, without a name, is the section itself."""
    return ("eval", "sets", name, part) if name else ("eval", part)


def _assemble(source: str, run: RunSections, selected: _Selection) -> RunConfig:
    def one(*key: str | int) -> Selected:
        return selected[key][0]

    dataset, rewards = one("dataset"), selected.get(("reward",), ())
    held_out = run.eval.settings() if run.eval is not None else {}

    def eval_set(name: str, settings: EvalSetConfig) -> EvalSet:
        own = selected.get(_of_set(name, "reward"), selected.get(("eval", "reward"), rewards))
        return EvalSet(name, settings, one(*_of_set(name, "dataset")), own)

    warmup = run.warmup.updates > 0
    warmup_dataset = selected.get(("warmup", "dataset"), (replace(dataset, section="warmup.dataset"),))[0]
    return RunConfig(
        source=source,
        run=run,
        algorithm=one("algorithm"),
        trainer=one("trainer"),
        engine=one("engine"),
        transport=one("transport"),
        weight_sync=one("weight_sync"),
        dataset=dataset,
        rewards=rewards,
        sinks=selected[("sinks",)],
        encoders=selected.get(("encoders",), ()),
        eval_sets=tuple(eval_set(name, settings) for name, settings in held_out.items()),
        warmup_algorithm=one("warmup", "algorithm") if warmup else None,
        warmup_dataset=warmup_dataset if warmup else None,
        warmup_trainer=one("warmup", "trainer") if warmup else None,
    )
