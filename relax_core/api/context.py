"""What every component is given beside its own configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relax_core.api.encoder import Encoder


def _count_nothing(name: str, amount: int = 1) -> None:
    """Counter of a component that runs outside a run."""


@dataclass(frozen=True)
class ModelSource:
    """A model on disk, as every role that loads one sees it.

    Args:
        path: A folder in Hugging Face format (config, safetensors, tokenizer).
        dtype: Compute dtype, ``float32`` or ``bfloat16``; trainers keep float32 master weights either way.
        trust_remote_code: Whether code shipped with the model may run.
        attention: transformers' ``attn_implementation``.
        tokenizer: Class of its tokenizer, ``module:name``, where that is known already.
    """

    path: Path
    dtype: str = "float32"
    trust_remote_code: bool = False
    attention: str = "sdpa"
    tokenizer: str = ""


@dataclass(frozen=True)
class Context:
    """Facts of the run that are not a component's own settings.

    Args:
        run_id: Name of the run.
        seed: Base seed of the run; derive with :func:`relax_core.dataflow.seeds.derive_seed`, never use it twice.
        directory: The run's folder.
        model: The model this component loads, ``None`` where it loads none.
        device: torch device string, resolved by the runtime.
        rank: Rank of this instance in its collective group.
        world_size: Size of that group.
        count: ``count(name, amount)`` adds to a counter of the run: caught errors, drops, retries.
        encoders: Of the run's media, for components that feed a model with them.
    """

    run_id: str
    seed: int
    directory: Path
    model: ModelSource | None = None
    device: str = "cpu"
    rank: int = 0
    world_size: int = 1
    count: Callable[[str, int], None] = _count_nothing
    encoders: tuple[Encoder, ...] = ()
