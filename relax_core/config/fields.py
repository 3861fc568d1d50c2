"""Which keys a configuration model knows, in itself and in the models inside it."""

from collections.abc import Iterator
from typing import get_args, get_origin

from pydantic import BaseModel

from relax_core.config.problems import Key


def fields_at(model: type[BaseModel], location: Key) -> list[str]:
    """Keys known at a place, through optional types, lists and mappings."""
    models = [model]
    for part in location:
        inner = [child.model_fields[str(part)].annotation for child in models if str(part) in child.model_fields]
        if inner:  # else the part is an index, a mapping's key or the tag of a union's member
            models = [found for annotation in inner for found in _models_in(annotation)]
    return [name for child in models for name in child.model_fields]


def all_keys(model: type[BaseModel], at: Key = ()) -> Iterator[Key]:
    """Every key, outer before inner; none in a mapping whose own keys are free."""
    for name, field in model.model_fields.items():
        yield (*at, name)
        for inner in () if get_origin(field.annotation) is dict else _models_in(field.annotation):
            yield from all_keys(inner, (*at, name))


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
