"""Random media for tests of engines and trainers, as the tiny models of :mod:`relax_core.testing.models` take them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from relax_core.api.encoder import Encoder
from relax_core.api.media import Encoded, Kind, MediaError, Prompt
from relax_core.models.media_tokens import MediaTokens

MERGED = 4
"""Patches that make one feature."""

SECONDS_PER_FRAME = 0.5

TYPE_IDS: Mapping[Kind, int] = {"image": 1, "video": 2, "audio": 0}
"""``mm_token_type_ids`` that processors of transformers give to placeholders."""


class RandomMedia(Encoder):
    """Draws media instead of reading them; their arrays are a model's own arguments.

    Args:
        config: Configuration of a model: a thinker, or one that sees.
    """

    name = "random"
    kinds = frozenset({"image", "video", "audio"})
    fingerprint = "random"

    def __init__(self, config: Any, context: Any = None) -> None:
        self.model_type: str = config.model_type
        vision = config.vision_config
        self.patch = 3 * vision.temporal_patch_size * vision.patch_size**2
        self.bins: int = config.audio_config.num_mel_bins if hasattr(config, "audio_config") else 0

    def image(self, seed: int, height: int = 4, width: int = 6) -> Encoded:
        """A picture of so many patches, both even."""
        return self._seen("image", seed, (1, height, width), (height * width // MERGED,))

    def video(self, seed: int, frames: int = 2, height: int = 4, width: int = 4) -> Encoded:
        """A film of so many pairs of frames."""
        of_one = height * width // MERGED
        if self.model_type == "qwen3_vl":
            layout = (of_one, *(part for _ in range(frames - 1) for part in ("<next>", of_one)))
        else:
            layout = (frames * of_one,)
        return self._seen("video", seed, (frames, height, width), layout)

    def audio(self, seed: int, frames: int = 130) -> Encoded:
        """A log-mel of so many frames."""
        if self.model_type == "qwen2_5_omni_thinker":
            places = ((frames - 1) // 2 - 1) // 2 + 1
        else:
            halved = (frames % 100 - 1) // 2 + 1
            places = ((halved - 1) // 2) // 2 + 1 + frames // 100 * 13
        mel = np.random.default_rng(seed).normal(size=(self.bins, frames)).astype(np.float32)
        return Encoded("audio", self.name, (places,), {"mel": mel})

    def _seen(self, kind: Kind, seed: int, grid: tuple[int, int, int], layout: tuple[int | str, ...]) -> Encoded:
        patches = np.random.default_rng(seed).normal(size=(int(np.prod(grid)), self.patch)).astype(np.float32)
        return Encoded(kind, self.name, layout, {"patches": patches, "grid": np.array(grid, np.int64)})

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        return None

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        raise MediaError("damaged", "these media are drawn, not read")

    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, Tensor]:
        inputs: dict[str, Tensor] = {}
        for kind, patches, grid in (
            ("image", "pixel_values", "image_grid_thw"),
            ("video", "pixel_values_videos", "video_grid_thw"),
        ):
            if seen := [each.arrays for each in media if each.kind == kind]:
                inputs[patches] = torch.cat([torch.as_tensor(each["patches"]) for each in seen])
                inputs[grid] = torch.stack([torch.as_tensor(each["grid"]) for each in seen])
        if "video_grid_thw" in inputs:
            seconds = "video_second_per_grid" if self.bins else "second_per_grid_ts"
            inputs[seconds] = torch.full((len(inputs["video_grid_thw"]),), SECONDS_PER_FRAME)
        if heard := [torch.as_tensor(each.arrays["mel"]).T for each in media if each.kind == "audio"]:
            inputs["input_features"] = pad_sequence(heard, batch_first=True).transpose(1, 2)
            lengths = torch.tensor([len(each) for each in heard])
            inputs["feature_attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        return {name: value.to(device) for name, value in inputs.items()}


def prompt_of(parts: Sequence[Sequence[int] | Encoded], tokens: Mapping[Kind, MediaTokens]) -> Prompt:
    """A prompt out of ids of text, and media between their marks; text within a medium's layout becomes one id."""
    ids: list[int] = []
    for part in parts:
        if not isinstance(part, Encoded):
            ids += part
            continue
        marks = tokens[part.kind]
        ids += marks.before
        for run in part.layout:
            ids += [marks.placeholder] * run if isinstance(run, int) else [*marks.after, ord("n"), *marks.before]
        ids += marks.after
    return Prompt(tuple(ids), tuple(part for part in parts if isinstance(part, Encoded)))


def example_prompts(encoder: RandomMedia, tokens: Mapping[Kind, MediaTokens]) -> dict[str, Prompt]:
    """Prompts with none, one, two and five media, of all kinds that a model takes."""
    text, more = list(b"what is it"), list(b"and")
    parts: dict[str, Sequence[Sequence[int] | Encoded]] = {
        "none": [text],
        "image": [text, encoder.image(1), more],
        "two images": [encoder.image(2), text, encoder.image(3, 6, 4)],
        "film": [text, encoder.video(18, 6), more],
        "five": [
            encoder.image(4),
            more,
            encoder.video(5),
            more,
            encoder.image(6),
            encoder.image(7, 2, 2),
            encoder.video(8),
        ],
    }
    if "audio" in tokens:
        parts |= {
            "audio": [text, encoder.audio(9), more],
            "short audio": [encoder.audio(10, 76), text],
            "image and audio": [encoder.image(11), text, encoder.audio(12, 230), more],
            "five of all kinds": [
                *(encoder.audio(13, 50), encoder.image(14), text, encoder.audio(15, 110)),
                *(encoder.video(16), encoder.image(17, 6, 6)),
            ],
        }
    return {name: prompt_of(each, tokens) for name, each in parts.items()}
