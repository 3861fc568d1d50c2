"""An encoder whose media are texts: a place for each byte of an image, for each second one of a sound."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from relax_core.api.encoder import Encoder
from relax_core.api.media import Encoded, Kind, MediaError


class Letters(Encoder):
    """``|`` in an image begins a new run, behind the text ``<next>``."""

    name = "letters"
    kinds = frozenset[Kind]({"image", "audio"})

    def __init__(self, config: Any = None, context: Any = None) -> None: ...

    @property
    def fingerprint(self) -> str:
        return self.name

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        return None

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        if data.startswith(b"damaged"):
            raise MediaError("damaged", "it cannot be read")
        runs: list[int | str] = []
        for run in data.split(b"|"):
            runs += ["<next>", len(run)] if runs else [len(run)]
        layout = tuple(runs) if kind == "image" else ((len(data) + 1) // 2,)
        return Encoded(kind, self.name, layout, {"bytes": np.frombuffer(data, np.uint8)})

    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, Tensor]:
        raise NotImplementedError("no model sees letters")
