"""Whether a model of random weights is the one that was meant: transformers takes any key, and keeps what it does not
know."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, modeling_utils

from relax_core.api.errors import ConfigError
from relax_core.config.problems import Key, dotted
from relax_core.config.validation import unknown_key

OPTIONAL = re.compile(r'(?:getattr|hasattr)\((?:self\.)?config,\s*"(\w+)"')
"""How a model's code reads a key that its configuration does not declare, such as `head_dim` of Qwen2."""


def require_known_keys(given: Mapping[str, Any], config: PreTrainedConfig, at: Key) -> None:
    """Compares what a configuration was given with what its class, and those of its parts, know.

    Args:
        given: The section.
        config: As transformers has built it: what it knows under another name is not kept under this one.
        at: Where the section stands, for messages.

    Raises:
        ConfigError: A key is unknown; names it and the nearest one.
    """
    usual = type(config)()
    effective = {*dir(usual), *_optional(type(config)), *(getattr(config, "rope_parameters", None) or ())}
    for name, value in given.items():
        place, part = (*at, name), getattr(config, name, None)
        if isinstance(value, Mapping) and isinstance(part, PreTrainedConfig):
            require_known_keys(value, part, place)
        elif name in vars(config) and name not in effective:
            known = [key for key in (*vars(usual), *config.attribute_map) if not key.startswith("_")]
            raise ConfigError(f"{dotted(place)}: {unknown_key(place, value, known)}")


def _optional(kind: type[PreTrainedConfig]) -> set[str]:
    """Keys that all models, and those beside a class of configurations, read where they are given."""
    models = Path(inspect.getfile(kind)).parent.glob("modeling_*.py")
    files = [Path(modeling_utils.__file__), *models]
    return {key for path in files for key in OPTIONAL.findall(path.read_text(encoding="utf-8"))}
