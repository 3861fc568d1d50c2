"""Everything that is wrong with one configuration, reported together."""

from collections.abc import Iterator, Mapping
from typing import Any

from relax_core.api.errors import ConfigError, RelaxError

Key = tuple[str | int, ...]
"""Place in a configuration: ``("sinks", 1, "name")``."""


def dotted(key: Key) -> str:
    """``sinks.1.name``, as overrides write it."""
    return ".".join(map(str, key))


class Problems:
    """Collects one line per problem and raises them in the order of the file.

    Args:
        source: What the lines begin with: the file's name.
        document: The configuration, whose order of keys is the order of the lines.
    """

    def __init__(self, source: str, document: Mapping[str, Any]) -> None:
        self._source = source
        self._order = {key: position for position, key in enumerate(_keys(document))}
        self._found: list[tuple[Key, str, type[RelaxError]]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, key: Key, text: str, error: type[RelaxError] = ConfigError) -> None:
        """Notes a problem of the value at ``key``, which need not exist."""
        self._found.append((key, text, error))

    def raise_if_any(self) -> None:
        """Raises all problems as one error, a line each.

        Raises:
            ConfigError: There are problems.
            PluginError: The only problems are selected plugins that cannot be used.
        """
        if self._found:
            self._found.sort(key=lambda problem: self._position(problem[0]))
            lines = [f"{self._source}: {dotted(key)}: {' '.join(text.split())}" for key, text, _ in self._found]
            errors = {error for _, _, error in self._found}
            raise (errors.pop() if len(errors) == 1 else ConfigError)("\n".join(lines))

    def _position(self, key: Key) -> int:
        """Position of the key or of the nearest thing around it; what is nowhere comes last."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._order:
                return self._order[key[:length]]
        return len(self._order)


def _keys(value: object, at: Key = ()) -> Iterator[Key]:
    items: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for part, item in items:
        yield (*at, part)
        yield from _keys(item, (*at, part))
