"""A model's tokenizer.

Which class it has, transformers says, and loads PyTorch and much else to find out. A process that is told the class
loads that alone: a sixth of the time and of the memory.
"""

from typing import Any

from relax_core.api.context import ModelSource
from relax_core.registry import load_target


def load_tokenizer(model: ModelSource) -> Any:
    """The tokenizer of a folder; errors are transformers' own."""
    if model.tokenizer:
        return load_target(model.tokenizer).from_pretrained(model.path)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)


def tokenizer_class(tokenizer: Any) -> str:
    """``module:name`` of its class, for :attr:`ModelSource.tokenizer`; empty for one whose code came with the model."""
    kind = type(tokenizer)
    return f"{kind.__module__}:{kind.__qualname__}" if kind.__module__.startswith("transformers.") else ""
