"""Arrays of numbers as media: the bytes of a ``.npy`` file."""

from io import BytesIO
from math import prod
from tokenize import TokenError
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from relax_core.api.media import MediaError

_format: Any = npy  # its functions have no types
_HEADERS: Final = {(1, 0): _format.read_array_header_1_0, (2, 0): _format.read_array_header_2_0}
_NO_LITERAL: Final = (ValueError, TypeError, SyntaxError, TokenError, MemoryError, RecursionError)
"""What a header that is none does to the parser of literals."""


def is_array(data: bytes) -> bool:
    """Whether bytes begin as a ``.npy`` file does."""
    return data.startswith(_format.MAGIC_PREFIX)


def read_array(data: bytes) -> npt.NDArray[Any]:
    """The numbers in the bytes of a ``.npy`` file, whose memory the array shares: it cannot be written to.

    Raises:
        MediaError: ``damaged``: they are cut off, or no such file, or no numbers.
    """
    stream = BytesIO(data)
    try:
        shape, by_column, dtype = _HEADERS[_format.read_magic(stream)](stream)
        if dtype.kind not in "uif" or min(shape, default=0) < 0:
            raise ValueError(f"{dtype} {shape} is no array of numbers")
        numbers = np.frombuffer(data, dtype, prod(shape), stream.tell())
    except (*_NO_LITERAL, KeyError, OverflowError) as error:
        raise MediaError("damaged", f"not a .npy file: {error}") from error
    return numbers.reshape(shape, order="F" if by_column else "C")
