"""Whether a model of random weights is the one that was meant: transformers takes any key, and keeps what it does not
know."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedConfig, modeling_utils

from relax_core.api.errors import ConfigError
from relax_core.config.problems import Key, dotted
from relax_core.config.validation import unknown_key

OPTIONAL = re.compile(r'(?:getattr|hasattr)\((?:self\.)?config,\s*"(\w+)"')
"""How a model's code reads a key that its configuration does not declare, such as `head_dim` of Qwen2."""


def require_known_keys(config: PreTrainedConfig, at: Key) -> None:
    """Compares what a configuration was given with what its class, and those of its parts, know.

    Args:
        config: As it was built.
        at: Where the section stands, for messages.

    Raises:
        ConfigError: A key is unknown; names it and the nearest one.
    """
    usual = type(config)()
    for name in vars(config).keys() - {*dir(usual), *_optional(type(config))}:
        known = [key for key in (*vars(usual), *config.attribute_map) if not key.startswith("_")]
        place = (*at, name)
        raise ConfigError(f"{dotted(place)}: {unknown_key(place, getattr(config, name), known)}")
    for name, part in _parts(config):
        require_known_keys(part, (*at, name))


def _parts(config: PreTrainedConfig) -> Iterator[tuple[str, PreTrainedConfig]]:
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield name, part


def _optional(kind: type[PreTrainedConfig]) -> set[str]:
    """Keys that all models, and those beside a class of configurations, read where they are given."""
    models = Path(inspect.getfile(kind)).parent.glob("modeling_*.py")
    files = [Path(modeling_utils.__file__), *models]
    return {key for path in files for key in OPTIONAL.findall(path.read_text(encoding="utf-8"))}
