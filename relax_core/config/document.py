"""YAML as people mean it: the core schema of YAML 1.2, no key twice, every error with its line and column."""

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from relax_core.api.errors import ConfigError
from relax_core.config.suggest import path_suggestion

_SCALARS: Final = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)
"""YAML 1.1, which PyYAML reads, takes 1e-3 for text, `no` for false, 12:30 for 750 and 010 for 8."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, starts in _SCALARS:
        for start in starts:
            entry = (f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"))
            table.setdefault("" if start == "\0" else start, []).append(entry)
    return table


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _resolvers()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise _error(key, f"a key must be text; write {str(key.value)!r} in quotes")
            if key.value in seen:
                raise _error(key, f"key {key.value!r} is given twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_decimal)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _resolvers()

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML writes these line breaks of Unicode as they are, and reads them as spaces; in double quotes it escapes.
        style = '"' if any(break_ in data for break_ in "\x85\u2028\u2029\ufeff") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _error(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def parse_yaml(text: str) -> Any:
    """One YAML value as plain Python: mappings with text keys, lists, text, numbers, booleans, ``None``.

    Raises:
        ConfigError: The text is not YAML, a key is given twice or is no text; with line and column.
    """
    try:
        value = yaml.load(text, _Loader)
        json.dumps(value, ensure_ascii=False).encode()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        problem = " ".join((error.problem or error.context or "not YAML").split())
        raise ConfigError(place + problem) from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"position {error.position}: unreadable character, {error.reason}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"a value is no mapping, list, text, number, boolean or null: {error}") from error
    return value


def dump_yaml(value: Any) -> str:
    """YAML text that :func:`parse_yaml` reads as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def read_document(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: The file is missing, cannot be read, is not YAML or holds something else than a mapping.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file{path_suggestion(path)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: the file must hold a mapping such as `algorithm: grpo`, not {document!r:.60}")
    return document
