"""Writes docs/reference/configuration.md from the configuration models themselves.

    python docs/reference.py

tests/test_docs.py compares.
"""

import json
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from relax_core.config.base import Config
from relax_core.config.run import RunSections
from relax_core.config.sections import DEFAULT_SINKS, SECTIONS, Section
from relax_core.config.selection import config_class
from relax_core.registry import registry

PAGE = Path(__file__).parent / "reference" / "configuration.md"
PLUGINS = ("relax-core", "relax-algos", "relax-audio", "relax-vision")
"""The plugins of this repository; whatever else is installed does not belong on the page."""

HEAD = """\
# Configuration reference

Every key of a run, made from the models that check it: `python docs/reference.py` writes this page.
[Configuration](../configuration.md) says how files, overrides and shorthand work.
"""

BOUNDS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def render() -> str:
    """The page."""
    plain = [name for name, field in RunSections.model_fields.items() if _model(field) is None]
    parts = [HEAD, "## The run\n\n" + _table(RunSections, plain)]
    for name, field in RunSections.model_fields.items():
        model = _model(field)
        if model is not None:
            parts.append(f"## `{name}`\n\n{_prose(model)}\n\n{_table(model)}")
    shown = [section for section in SECTIONS if len(section.key) == 1]
    parts += [_components(section) for section in shown]
    return "\n".join(parts)


def _components(section: Section) -> str:
    """A component section: what may stand in it, and the keys of each component."""
    name = section.key[0]
    default = section.default or ", ".join(DEFAULT_SINKS if section.kind == "sinks" else ())
    also = [".".join(other.key) for other in SECTIONS if other.kind == section.kind and other is not section]
    lines = [f"## `{name}`", ""]
    rule = f"`{default}` when absent" if default else "no default"
    many = "; one, or a list" if section.many else ""
    places = f" The same components stand in {' and '.join(f'`{place}`' for place in also)}." if also else ""
    lines += [f"Selects a component by `name`: {rule}{many}.{places}", ""]
    for found in registry().offers(section.kind):
        if found.plugin.name in PLUGINS:
            keys = _table(config_class(found.component, section.base))
            lines += [f"### `{name}: {found.component.name}`", ""]
            lines += [f"{found.component.summary} From {found.plugin.name}.", "", keys]
    return "\n".join(lines)


def _table(model: type[BaseModel], names: Sequence[str] | None = None) -> str:
    rows = list(_rows(model, model.model_fields if names is None else names))
    if not rows:
        return "No keys.\n"
    return "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _rows(model: type[BaseModel], names: Sequence[str] | dict[str, FieldInfo], prefix: str = "") -> Iterator[str]:
    for name in names:
        field = model.model_fields[name]
        inner = _model(field)
        if inner is not None:
            yield from _rows(inner, inner.model_fields, f"{prefix}{name}.")
            continue
        cells = [f"`{prefix}{name}`", _type(field.annotation, field.metadata), _default(field), field.description or ""]
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _model(field: FieldInfo) -> type[Config] | None:
    """The model of a key that is a section, ``None`` for a value; a mapping with keys of its own is one."""
    if get_origin(field.annotation) is dict:
        return None
    for annotation in (field.annotation, *get_args(field.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, Config):
            return annotation
    return None


def _type(annotation: Any, bounds: Sequence[object] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], arguments[1].metadata if isinstance(arguments[1], FieldInfo) else arguments[1:])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return ", ".join(_type(part, bounds) for part in arguments if part is not type(None))
    if origin is tuple:
        parts = [part for part in arguments if part is not Ellipsis]
        return f"list of {_type(parts[0])}" if Ellipsis in arguments else f"{len(parts)} times {_type(parts[0])}"
    if origin is dict:
        return "mapping"
    words = {str: "text", Path: "path", int: "whole number", float: "number", bool: "true, false"}
    return " ".join([words[annotation], ", ".join(_bounds(bounds))]).strip()


def _bounds(bounds: Sequence[object]) -> Iterator[str]:
    for bound in bounds:
        if type(bound) in BOUNDS:
            sign, attribute = BOUNDS[type(bound)]
            yield f"{sign} {getattr(bound, attribute):g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value is None else f"`{json.dumps(value, default=str)}`"


def _prose(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split()).replace("``", "`")


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
    print(PAGE)
