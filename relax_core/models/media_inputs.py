"""What a model is given of the media in its prompts, and where the tokens of such prompts stand."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relax_core.api.columns import IntArray
from relax_core.api.encoder import Encoder
from relax_core.api.errors import RelaxError
from relax_core.api.media import Encoded, Kind
from relax_core.models.media_tokens import MediaTokens

TYPES: Mapping[Kind, int] = {"image": 1, "video": 2}
"""``mm_token_type_ids`` of placeholders, of which only models that do not hear ask; all other tokens have 0."""


@dataclass(frozen=True)
class Places:
    """Where the tokens of a sequence stand on the three axes of M-RoPE: time, height and width.

    Args:
        begin: ``[3, n]``: of the first n tokens, up to the mark behind the last medium.
        ahead: How far every later token stands ahead of its number, on all axes; mostly negative.
    """

    begin: Tensor
    ahead: float

    def of(self, length: int) -> Tensor:
        """``[3, length]``: of the first tokens."""
        known = self.begin[:, :length]
        later = torch.arange(known.shape[1], length, device=known.device) + self.ahead
        return torch.cat([known, later.to(known.dtype).expand(3, -1)], dim=1)


@dataclass(frozen=True)
class MediaInputs:
    """Feeds a model with media.

    Args:
        model: A transformers model that sees or hears.
        tokens: Its own, by kind; see :func:`relax_core.models.media_tokens.media_tokens`.
        encoders: Who made the media.
    """

    model: Any
    tokens: Mapping[Kind, MediaTokens]
    encoders: Sequence[Encoder]

    @cached_property
    def placeholders(self) -> IntArray:
        """int64, ascending: the ids of placeholders, of which a model draws none."""
        return np.unique(np.array([each.placeholder for each in self.tokens.values()], np.int64))

    def text_of(self, ids: Sequence[int]) -> int:
        """An id that stands for nothing: the first of some, unless that is a placeholder."""
        return ids[0] if ids[0] not in self.placeholders else self._text

    def problem(self, token_ids: Sequence[int] | IntArray, media: Sequence[Encoded]) -> str | None:
        """In what the placeholders among some tokens are not those of their media, one by one; ``None`` if they are."""
        ids = np.asarray(token_ids)
        found = ids[np.isin(ids, self.placeholders)]
        if foreign := sorted({each.kind for each in media} - self.tokens.keys()):
            return f"the model takes {sorted(self.tokens) or 'no media'}, and there is {foreign[0]}"
        expected = [np.full(each.places, self.tokens[each.kind].placeholder) for each in media]
        if len(found) != sum(map(len, expected)):
            return f"{len(found)} placeholders among the tokens, and media with {sum(map(len, expected))} places"
        if expected and not np.array_equal(found, np.concatenate(expected)):
            return "the placeholders among the tokens are not in the order of the media"
        return None

    def arguments(self, media: Sequence[Encoded]) -> dict[str, Tensor]:
        """Arguments of the model's ``forward``, for media in the order of their placeholders in its input.

        Raises:
            RelaxError: The run has no encoder that made one of them.
        """
        known = {encoder.name: encoder for encoder in self.encoders}
        arguments: dict[str, Tensor] = {}
        for name in dict.fromkeys(each.encoder for each in media):
            if name not in known:
                raise RelaxError(f"media of the encoder {name!r}, and the run has {sorted(known) or 'none'}")
            arguments |= known[name].inputs([each for each in media if each.encoder == name], self.model.device)
        return arguments

    def places(self, sequences: Sequence[Sequence[int] | IntArray], arguments: Mapping[str, Tensor]) -> list[Places]:
        """Where the tokens of some sequences stand, by the model's own rule.

        Args:
            sequences: Each has placeholders.
            arguments: Of the media of all sequences in order, see :meth:`arguments`.
        """
        shown = [self._media_alone(np.asarray(sequence)) for sequence in sequences]
        width = max(map(len, shown))
        ids, mask = torch.zeros(2, len(shown), width, dtype=torch.long)
        for row, line in enumerate(shown):
            ids[row, : len(line)] = torch.as_tensor(line)
            mask[row, : len(line)] = 1
        rule = self._rope_index
        positions, _ = rule(input_ids=ids, attention_mask=mask, **_facts(rule, self._types(ids), arguments))
        begins = [positions[:, row, : len(line)] for row, line in enumerate(shown)]
        # The last of them is text, behind which text goes on, though a film may reach further in time.
        return [Places(begin, _whole(begin[:, -1].max().item() + 1 - begin.shape[1])) for begin in begins]

    @property
    def _rope_index(self) -> Any:
        return getattr(self.model.base_model, "get_rope_index", None) or self.model.get_rope_index

    def _media_alone(self, ids: IntArray) -> IntArray:
        """The sequence up to the mark behind its last medium, with no other mark: models count them, also those that
        somebody typed, or a policy drew."""
        held = np.isin(ids, self.placeholders)
        shown = np.append(np.where(held, ids, self._text), self._text)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], held, [False]]).astype(np.int8)))
        for start, end in edges.reshape(-1, 2):
            tokens = next(each for each in self.tokens.values() if each.placeholder == ids[start])
            shown[end : end + len(tokens.after)] = tokens.after
            shown[max(start - len(tokens.before), 0) : start] = tokens.before[: min(start, len(tokens.before))]
        return shown[: edges[-1] + 1]

    @cached_property
    def _text(self) -> int:
        """The lowest id that is neither a placeholder nor a mark."""
        marks = {index for each in self.tokens.values() for index in (*each.before, *each.after, each.placeholder)}
        return min(set(range(len(marks) + 1)) - marks)

    def _types(self, ids: Tensor) -> Tensor:
        types = torch.zeros_like(ids)
        for kind, index in TYPES.items():
            types[ids == self.tokens[kind].placeholder] = index
        return types


def _facts(rule: Any, types: Tensor, arguments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a model's rule asks of the media, which its ``forward`` is given under partly other names."""
    facts = {name: arguments[name] for name in ("image_grid_thw", "video_grid_thw") if name in arguments}
    facts["mm_token_type_ids"] = types
    for name in ("second_per_grid_ts", "video_second_per_grid"):
        if name in arguments:
            facts["second_per_grid_ts"] = facts["second_per_grids"] = arguments[name]
    if "feature_attention_mask" in arguments:
        facts["audio_seqlens"] = arguments["feature_attention_mask"].sum(1)
    accepted = inspect.signature(rule).parameters
    return {name: value.cpu() for name, value in facts.items() if name in accepted}


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number
