"""Strict validation of plain data, with pydantic's findings in plain words."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relax_core.config.base import Config
from relax_core.config.fields import fields_at
from relax_core.config.problems import Key, Problems
from relax_core.config.redact import redacted
from relax_core.config.sections import places_of
from relax_core.config.suggest import suggestion

C = TypeVar("C", bound=Config)

_PHRASES: Final = {
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "bool_type": "is neither true nor false",
    "string_type": "is not text",
    "none_required": "is not null",
    "model_type": "is not a mapping",
    "dict_type": "is not a mapping",
    "tuple_type": "is not a list",
    "list_type": "is not a list",
    "set_type": "is not a list",
    "frozen_set_type": "is not a list",
    "greater_than": "is not greater than {gt}",
    "greater_than_equal": "is less than {ge}, the least allowed",
    "less_than": "is not less than {lt}",
    "less_than_equal": "is more than {le}, the most allowed",
    "multiple_of": "is not a multiple of {multiple_of}",
    "too_short": "has {actual_length} items and needs at least {min_length}",
    "too_long": "has {actual_length} items and may have {max_length}",
    "string_too_short": "is shorter than {min_length}, the least length allowed",
    "string_too_long": "is longer than {max_length} characters",
    "string_pattern_mismatch": "does not match the pattern {pattern}",
}


def validate(
    model: type[C], data: Mapping[str, Any], at: Key, problems: Problems, beside: Mapping[Key, Sequence[str]]
) -> C | None:
    """Builds ``model`` from plain data, without any conversion between text, numbers and booleans.

    Args:
        model: The configuration class.
        data: What the file says.
        at: Where it says so.
        problems: Receives one problem per wrong key; the result is then ``None``.
        beside: Keys that stand beside the model's own, by place in the model; for suggestions.
    """
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        for key, text in _explain(error.errors(include_url=False), model, data, beside):
            problems.add((*at, *key), text)
        return None


def show(value: object, key: Key = ()) -> str:
    """A value for a message: as in the file, short, without secrets."""
    name = next((part for part in reversed(key) if isinstance(part, str)), "")
    text = json.dumps(redacted({name: value})[name], ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def unknown_key(key: Key, value: object, known: Iterable[str]) -> str:
    """The line about a key that is not known where it stands."""
    name = str(key[-1])
    return f"unknown key (value {show(value, key)}){suggestion(name, known, elsewhere=places_of(name))}"


def _explain(
    errors: list[ErrorDetails], model: type[Config], data: Mapping[str, Any], beside: Mapping[Key, Sequence[str]]
) -> Iterator[tuple[Key, str]]:
    strangers = {error["loc"][:-1] for error in errors if error["type"] == "extra_forbidden"}
    phrases: dict[Key, list[str]] = {}
    for error in errors:
        location, value = error["loc"], error["input"]
        if error["type"] == "extra_forbidden":
            known = [*beside.get(location[:-1], ()), *fields_at(model, location[:-1])]
            yield location, unknown_key(location, value, known)
        elif error["type"] in ("value_error", "assertion_error"):
            yield _refusal(location, value, str(error["ctx"]["error"]), fields_at(model, location))
        elif error["type"] != "missing":
            phrases.setdefault(_written(location, data), []).append(_phrase(error))
        elif isinstance(location[-1], int):
            phrases.setdefault(location[:-1], []).append("has too few items")
        elif location[:-1] not in strangers:  # a misspelt key is one problem, not two
            yield location, "missing"
    for key, found in phrases.items():
        yield key, f"{show(_at(key, data), key)} {' and '.join(dict.fromkeys(found))}"


def _refusal(location: Key, value: object, message: str, fields: list[str]) -> tuple[Key, str]:
    """A validator's own message. Where it begins with the name of a key, that key is the place."""
    name, colon, rest = message.partition(": ")
    if colon and name in fields:
        return (*location, name), rest
    if isinstance(value, Mapping):
        return location, message
    text = rest if colon and name == str(location[-1]) else message
    return location, text if str(value) in text else f"{show(value, location)}: {text}"


def _phrase(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return f"is not {error['ctx']['expected']}" + (suggestion(str(error["input"]), choices) if choices else "")
    phrase = _PHRASES.get(error["type"])
    if phrase is None:
        return f"is refused: {error['msg']}"
    quote = error["type"] == "string_type" and isinstance(error["input"], bool | int | float)
    return phrase.format(**error.get("ctx", {})) + ("; put it in quotes" if quote else "")


def _written(location: Key, data: object) -> Key:
    """The part of a location that is in the data; pydantic adds the names of a union's members."""
    for length, part in enumerate(location):
        inside = (isinstance(data, Mapping) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if not inside:
            return location[:length]
        data = data[part]  # type: ignore[index]
    return location


def _at(key: Key, data: Any) -> object:
    for part in key:
        data = data[part]
    return data
