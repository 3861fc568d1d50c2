"""What a run declares when it opens its transport: columns, and who reads which."""

from collections.abc import Mapping, Sequence
from typing import Any

from relax_core.api.columns import ColumnSpec
from relax_core.api.errors import TransportError
from relax_core.api.transport import Consumer
from relax_core.transports.memory.schema import Schema


class Declarations:
    """Columns and consumers that fit each other.

    Raises:
        TransportError: A name is declared twice, or a consumer reads a column that is not declared.
    """

    def __init__(self, columns: Sequence[ColumnSpec] = (), consumers: Sequence[Consumer] = ()) -> None:
        self.schema = Schema(columns)
        self.consumers = {consumer.name: consumer for consumer in consumers}
        for consumer in consumers:
            for name in sorted(consumer.reads | consumer.light):
                self.schema.spec(name)
            if not consumer.light <= consumer.reads:
                raise TransportError(
                    f"{consumer.name}: light columns {sorted(consumer.light - consumer.reads)} not in reads"
                )
        self._light = {
            consumer.name: [self.schema.specs[name] for name in sorted(consumer.light)] for consumer in consumers
        }
        if len(self.consumers) != len(consumers):
            raise TransportError(f"a consumer is declared twice among {[consumer.name for consumer in consumers]}")

    @property
    def columns(self) -> list[ColumnSpec]:
        """The columns, in the order they were declared."""
        return list(self.schema.specs.values())

    def light(self, consumer: str) -> list[ColumnSpec]:
        """Columns that come with a lease of this consumer."""
        return self._light[consumer]

    def readable(self, consumer: str, columns: Sequence[str]) -> list[ColumnSpec]:
        """The named columns; ``TransportError`` for one that the consumer does not declare to read."""
        for name in columns:
            if self.schema.spec(name).name not in self.consumers[consumer].reads:
                raise TransportError(f"{consumer!r} fetches {name!r}, but does not declare to read it")
        return [self.schema.specs[name] for name in columns]

    def state(self) -> dict[str, Any]:
        """The declarations as plain values."""
        return {
            "columns": [
                [spec.name, spec.dtype, spec.level, list(spec.trailing), spec.ragged]
                for spec in self.schema.specs.values()
            ],
            "consumers": [
                [consumer.name, sorted(consumer.reads), sorted(consumer.light)] for consumer in self.consumers.values()
            ],
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Declarations":
        """What :meth:`state` gave."""
        columns = [
            ColumnSpec(name, dtype, level, tuple(trailing), ragged)
            for name, dtype, level, trailing, ragged in state["columns"]
        ]
        consumers = [Consumer(name, frozenset(reads), frozenset(light)) for name, reads, light in state["consumers"]]
        return cls(columns, consumers)
