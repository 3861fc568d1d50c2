"""What Qwen3-Omni hears in a clip is made the same whatever clips are beside it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    _get_feat_extract_output_lengths,
    chunk_and_pad_features,
)


def make_clips_independent(model: nn.Module) -> None:
    """Lets the audio towers of a model pad every chunk of a clip to the full length.

    transformers pads to the longest chunk of the batch, and the second convolution sees the difference: a clip of less
    than a second would have other features alone than beside a longer one. Of longer clips they are as transformers has
    them, since those have a full chunk.
    """
    for module in model.modules():
        if isinstance(module, Qwen3OmniMoeAudioEncoder):
            module.register_forward_pre_hook(_pad_chunks, with_kwargs=True)


def _pad_chunks(
    tower: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Adds what the tower's ``forward`` would compute of its chunks, had the batch a full one."""
    assert isinstance(tower, Qwen3OmniMoeAudioEncoder)
    features, lengths = chunk_and_pad_features(arguments[0], keywords["feature_lens"], tower.n_window)
    full = 2 * tower.n_window
    places = torch.arange(int(_heard(torch.tensor(full), tower)), device=lengths.device)
    chunks = {
        "padded_feature": functional.pad(features, (0, full - features.shape[-1])),
        "chunk_lengths": lengths,
        "valid_indices": (places < _heard(lengths, tower)[:, None]).flatten().nonzero()[:, 0],
    }
    return arguments, {**keywords, **chunks}


def _heard(frames: Tensor, tower: Qwen3OmniMoeAudioEncoder) -> Tensor:
    """Features that a tower makes of chunks of so many frames."""
    lengths: Tensor = _get_feat_extract_output_lengths(frames, tower.n_window)
    return lengths
