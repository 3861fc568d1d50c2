"""Settings of the embedded datasets."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from relax_core.api.media import Kind
from relax_core.config import Config

LARGEST_SPACE = 10**6


class RecordKeys(Config):
    """Which keys of a record hold what; a record is a line of a JSON lines file or a row of a Parquet file."""

    prompt_key: str = Field("prompt", description="Key of the prompt: a string or a list of chat messages.")
    label_key: str | None = Field(
        None,
        description="Key of the label, any JSON value, that every task must have; absent: `label`, if it is there.",
    )
    metadata_key: str | None = Field(
        None, description="Key of an object that becomes the metadata; by default all other keys do."
    )
    chosen_key: str | None = Field(
        None,
        description="Key of the better of two answers, each a string or a list of chat messages. They become the label "
        "`{chosen, rejected}`. Absent: `chosen`, if both are there and no label is.",
    )
    rejected_key: str | None = Field(None, description="Key of the worse answer; absent: `rejected`, likewise.")
    image_key: str | None = Field(
        None,
        description="Key of the images that the prompt refers to, in order: a path, a URL, bytes, or a list of them; "
        "null or absent where a record has none.",
    )
    audio_key: str | None = Field(None, description="Key of the sounds, likewise.")
    video_key: str | None = Field(None, description="Key of the videos, likewise.")
    media_root: Path | None = Field(
        None, description="Folder in which relative paths of media begin; absent: that of the file."
    )

    @model_validator(mode="after")
    def _one_label(self) -> Self:
        for key in ("chosen_key", "rejected_key"):
            if getattr(self, key) is not None and self.label_key is not None:
                raise ValueError(f"{key}: {getattr(self, key)} would be ignored: `label_key` is given")
        return self

    @property
    def pair(self) -> tuple[str, str]:
        """Keys of the better and the worse answer."""
        return self.chosen_key or "chosen", self.rejected_key or "rejected"

    @property
    def needs_pair(self) -> bool:
        """Whether every record must have two answers."""
        return self.chosen_key is not None or self.rejected_key is not None

    @property
    def media(self) -> Mapping[Kind, str]:
        """Keys of media, by their kind."""
        keys: dict[Kind, str | None] = {"image": self.image_key, "audio": self.audio_key, "video": self.video_key}
        return {kind: key for kind, key in keys.items() if key is not None}

    @property
    def fingerprint(self) -> str:
        """Changes when other keys of a record are read."""
        return json.dumps(self.model_dump(mode="json", include=set(RecordKeys.model_fields)))

    @property
    def required(self) -> list[str]:
        """Keys that every record must have."""
        named = [self.prompt_key, self.label_key, *(self.pair if self.needs_pair else ()), self.metadata_key]
        return [key for key in named if key is not None]


class JsonlDatasetConfig(RecordKeys):
    """Tasks in a file with one JSON object per line."""

    path: Path = Field(description="UTF-8 file; blank lines are skipped.")


class ParquetDatasetConfig(RecordKeys):
    """Tasks in a Parquet file, one per row; keys are columns."""

    path: Path = Field(description="Parquet file; it is kept in memory, in the form of Arrow.")


class GeneratedDatasetConfig(Config):
    """Small tasks of digits, made from their index; held-out tasks never occur in training."""

    task: Literal["sort_digits", "reverse", "add"] = Field(
        "sort_digits", description="`7392=` -> `2379`; `7392=` -> `2937`; `73+92=` -> `165`."
    )
    digits: int = Field(4, ge=1, description="Digits of each number; at most 6, for `add` at most 3.")
    split: Literal["train", "heldout"] = Field("train", description="The two splits share no task.")
    heldout: int = Field(200, ge=0, description="Tasks kept out of training.")
    split_seed: int = Field(0, ge=0, description="Which tasks are held out, and their order; not the run's seed.")
    size: int | None = Field(None, ge=1, description="Only so many tasks of the split, the first.")

    @property
    def space(self) -> int:
        """How many tasks there are with these digits, both splits together."""
        return int(10 ** (self.digits * (2 if self.task == "add" else 1)))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.space > LARGEST_SPACE:
            raise ValueError(f"digits: {self.digits} makes {self.space} tasks of {self.task}, over {LARGEST_SPACE}")
        if self.heldout > self.space:
            raise ValueError(f"heldout: {self.heldout} is more than the {self.space} tasks of {self.task}")
        available = self.heldout if self.split == "heldout" else self.space - self.heldout
        if available < 1:
            raise ValueError(f"heldout: {self.heldout} of {self.space} tasks leaves none for split {self.split!r}")
        if self.size is not None and self.size > available:
            raise ValueError(f"size: {self.size} is more than the {available} tasks of split {self.split!r}")
        return self


class ReasoningGymDatasetConfig(Config):
    """Tasks that reasoning-gym generates."""

    task: str = Field(description="Name of a reasoning-gym dataset, such as `chain_sum`.")
    size: int = Field(1000, ge=1, description="Number of tasks.")
    seed: int = Field(
        0, ge=0, description="For held-out tasks take another one; where there are few different tasks, some recur."
    )
    options: dict[str, Any] = Field({}, description="Further settings of that dataset, such as `max_digits`.")

    @field_validator("options")
    @classmethod
    def _no_second_seed(cls, options: dict[str, Any]) -> dict[str, Any]:
        for key in ("size", "seed"):
            if key in options:
                raise ValueError(f"options: {key!r} is a key of its own, next to options")
        return options
