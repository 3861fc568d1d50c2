"""Base classes of every configuration model, core's and plugins'."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from relax_core.api.algorithm import Requirements
from relax_core.catalogue.entries import models_folder


class Config(BaseModel):
    """Strict and frozen: an unknown key is an error with the nearest name. The key ``name`` is added by core."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AlgorithmConfig(Config):
    """Settings of an algorithm; says what they ask of the plan."""

    def requirements(self) -> Requirements:
        """What the plan must provide; see :class:`relax_core.api.algorithm.Requirements`."""
        return Requirements()


class RewardConfig(Config):
    """Settings every reward has; what to do with an error is the run's policy, not the reward's."""

    weight: float = Field(1.0, description="Factor of this reward in the sum of all rewards.")
    timeout_seconds: float = Field(30.0, gt=0, description="Longest time for one trajectory; its process is killed.")
    on_error: Literal["fail", "drop"] = Field(
        "fail", description="A reward that raises, hangs or returns NaN: end the run, or drop the whole group, counted."
    )


class TrainerConfig(Config):
    """Settings every trainer has."""

    learning_rate: float = Field(1e-6, ge=0, description="Peak learning rate.")
    warmup_updates: int = Field(0, ge=0, description="Updates over which the learning rate rises linearly.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="Learning rate after warm-up.")
    minimum_learning_rate: float = Field(0.0, ge=0, description="Where linear and cosine end.")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.95), description="AdamW's decay of the first and second moment."
    )
    epsilon: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled decay of matrices; norms and biases have none.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this global L2 norm.")
    max_skipped_in_row: int = Field(5, ge=1, description="Updates in a row with non-finite gradients that end the run.")
    total_updates: int = Field(0, ge=0, description="Length of the schedule; the run sets it, 0 means its own length.")

    def ignored_on_one_rank(self) -> Mapping[str, object]:
        """Settings that are there and have no effect where the trainer has one data-parallel rank, by key."""
        return {}


class EngineConfig(Config):
    """Settings every engine has."""


class ModelFolder(Config):
    """A model on disk: a folder in Hugging Face format, or a model of the catalogue."""

    path: Path | None = Field(None, description="Folder with config, safetensors and tokenizer.")
    name: str | None = Field(None, description="A model that `relax models add` has fetched, such as `smollm2`.")

    @property
    def folder(self) -> Path | None:
        """Folder of the model that ``path`` or ``name`` gives; ``None`` without either."""
        return self.path if self.name is None else models_folder() / self.name


class ModelConfig(ModelFolder):
    """The policy: a folder in Hugging Face format, a model of the catalogue, or a configuration with random weights."""

    init: dict[str, object] | None = Field(
        None, description="Keyword arguments of transformers' AutoConfig (`model_type` first); random weights by seed."
    )
    tokenizer: str = Field("bytes", description="With `init`: `bytes` (256 bytes and Qwen's specials) or a folder.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Compute dtype; masters are float32.")
    attention: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        "sdpa", description="Attention of transformers in trainer and engine."
    )
    trust_remote_code: bool = Field(False, description="Whether Python code in the model's folder may run.")
