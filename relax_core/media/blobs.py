"""Media between roles: blobs of the transport that the rows of a group name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relax_core.api.columns import Column, Table
from relax_core.api.errors import TransportError
from relax_core.api.media import Encoded
from relax_core.api.transport import Lease, Transport
from relax_core.dataflow.columns import MEDIA
from relax_core.media.kept import KeptMedia

CACHE_BYTES = 256 * 2**20
"""Of the media that each rank keeps."""


def put_media(transport: Transport, group: int, media: Sequence[Encoded]) -> Column:
    """Has a group hold its media, each once however many rows it has; returns the column that names them."""
    keys = [transport.put_blob(medium.packed, group) for medium in media]
    return Column.of(MEDIA, [np.frombuffer(json.dumps(keys).encode("ascii"), np.uint8)])


def media_keys(table: Table) -> Mapping[int, tuple[str, ...]]:
    """By group, the keys of its media; groups without any are absent."""
    _, rows = np.unique(table.groups, return_index=True)
    named = {int(table.groups[row]): tuple(json.loads(table[MEDIA.name][row].tobytes())) for row in rows.tolist()}
    return {group: keys for group, keys in named.items() if keys}


def stored_media(transport: Transport, table: Table) -> dict[str, bytes]:
    """By key, the blobs of all media that rows name; none where rows name none."""
    if MEDIA.name not in table:
        return {}
    return {key: transport.get_blob(key) for keys in media_keys(table).values() for key in keys}


@dataclass(frozen=True)
class MediaOfRows:
    """Fetches the media of leased rows, and keeps the last of them: rows go through a model several times.

    Args:
        kept: Those.
    """

    kept: KeptMedia = field(default_factory=lambda: KeptMedia(CACHE_BYTES))

    def fetch(
        self, transport: Transport, lease: Lease, columns: Sequence[str], ids: Sequence[int] | np.ndarray
    ) -> tuple[Table, Mapping[int, Sequence[Encoded]]]:
        """Rows, as :meth:`relax_core.api.transport.Transport.fetch`, without the column that names media; and these,
        by group.

        Raises:
            TransportError: A medium of a group that is there is not.
        """
        table = transport.fetch(lease, columns, ids)
        media = {}
        for group, keys in media_keys(table).items():
            try:
                media[group] = [self._medium(transport, key) for key in keys]
            except TransportError:
                if group in transport.fetch(lease, [MEDIA.name], ids).groups:
                    raise
                table = table.select(np.flatnonzero(table.groups != group))  # dropped meanwhile, and its media with it
        left = {name: column for name, column in table.columns.items() if name != MEDIA.name}
        return Table(table.ids, table.groups, left, table.versions), media

    def _medium(self, transport: Transport, key: str) -> Encoded:
        medium = self.kept.get(key)
        if medium is None:
            medium = Encoded.unpack(transport.get_blob(key))
            self.kept.keep(key, medium)
        return medium
