"""A model folder that cannot be loaded is bad input, whichever library finds out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from relax_core.api.errors import ConfigError


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """What libraries raise at a damaged model folder, as one line that names the folder.

    Raises:
        ConfigError: In place of it.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"model: the folder {str(path)!r} cannot be loaded: {reason}") from error
