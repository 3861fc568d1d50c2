"""JSON schema of a run's YAML, for editors; made from the plugins that are installed here."""

from typing import Any, Literal

from pydantic import BaseModel, create_model
from pydantic.json_schema import models_json_schema

from relax_core.config.run import RunSections
from relax_core.config.sections import EACH, SECTIONS, Section
from relax_core.config.selection import config_class
from relax_core.registry import Found, registry

_WARMUP_TRAINER = ("warmup", "trainer")
_ONE_SET_OR_SEVERAL = [
    {"required": ["dataset"], "properties": {"sets": {"maxProperties": 0}}},
    {"required": ["sets"], "properties": {"sets": {"minProperties": 1}, "dataset": False}},
]
_Models = dict[str, type[BaseModel]]


def run_schema() -> dict[str, Any]:
    """Schema of the whole file; in each component section, ``name`` decides which keys are known.

    Components of plugins that cannot be used here are not in it: a configuration that selects one is refused.

    Raises:
        PluginError: The configuration class of a usable plugin cannot be imported.
    """
    usable = {
        kind: [found for found in registry().offers(kind) if found.plugin.status == "ok"]
        for kind in {section.kind for section in SECTIONS}
    }
    models: _Models = {}
    for section in SECTIONS:
        for found in usable[section.kind]:
            models.setdefault(_title(section, found), _model(section, found, usable[section.kind]))
    all_models: list[type[BaseModel]] = [RunSections, *models.values()]
    references, document = models_json_schema([(model, "validation") for model in all_models])
    definitions = document["$defs"]
    schema = definitions.pop("RunSections")
    schema["required"] = ["dataset"]
    definitions["EvalConfig"]["oneOf"] = _ONE_SET_OR_SEVERAL
    definitions["EvalSetConfig"]["required"] = ["dataset"]
    holders = {
        (): schema,
        ("eval",): definitions["EvalConfig"],
        ("eval", "sets", EACH): definitions["EvalSetConfig"],
        ("warmup",): definitions["WarmupConfig"],
    }
    for section in SECTIONS:
        variants = [references[models[_title(section, found)], "validation"] for found in usable[section.kind]]
        properties = holders[section.key[:-1]]["properties"]
        properties[section.key[-1]] = _choice(section, variants, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Relax run",
        "$defs": definitions,
    }


def _title(section: Section, found: Found) -> str:
    """Name of a definition; the same component needs its name in one section and is the default of another."""
    suffix = "-partial" if section.key == _WARMUP_TRAINER else "-default" if _is_default(section, found) else ""
    return f"{section.kind}-{found.plugin.name}-{found.component.name}{suffix}"


def _is_default(section: Section, found: Found) -> bool:
    return found.component.name == section.default


def _model(section: Section, found: Found, offers: list[Found]) -> type[BaseModel]:
    """The component's configuration with the key ``name``."""
    component = found.component
    names = [f"{found.plugin.name}/{component.name}"]
    if sum(other.component.name == component.name for other in offers) == 1:
        names.insert(0, component.name)
    field: Any = (Literal[tuple(names)], component.name if _is_default(section, found) else ...)
    return create_model(
        _title(section, found),
        __base__=config_class(component, section.base),
        __doc__=component.summary,
        name=field,
    )


def _choice(section: Section, variants: list[dict[str, Any]], definitions: dict[str, Any]) -> dict[str, Any]:
    """One of the components, or its bare name where it needs no other key; or a list of these."""
    names: list[str] = []
    for variant in variants:
        definition = definitions[variant["$ref"].rpartition("/")[2]]
        if section.key == _WARMUP_TRAINER:
            definition.pop("required", None)
        if set(definition.get("required", ())) <= {"name"}:
            name = definition["properties"]["name"]
            names += [name["const"]] if "const" in name else name["enum"]
    one = {"oneOf": [{"enum": names}, *variants]}
    return {"oneOf": [*one["oneOf"], {"type": "array", "items": one}]} if section.many else one
