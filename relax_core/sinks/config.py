"""Settings of the embedded sinks. Imports neither rich nor TensorBoard."""

from pydantic import Field

from relax_core.config import Config


class ConsoleSinkConfig(Config):
    """Progress on standard error: a bar on a terminal, plain lines elsewhere."""

    every: int = Field(1, ge=1, description="Without a terminal: updates per line; the last update always has one.")
    metrics: tuple[str, ...] = Field(
        ("rollout/reward", "train/loss", "perf/train_tokens_per_s"),
        description="Shown when present, in this order; a step that has none of them shows everything.",
    )
    samples: bool = Field(False, description="Whether texts, such as sampled answers, are printed.")


class JsonlSinkConfig(Config):
    """metrics.jsonl, samples.jsonl and events.jsonl in the run's folder."""


class TensorboardSinkConfig(Config):
    """Event files in the run's folder, under `tensorboard`."""
