"""Settings of the embedded trainer. Imports no torch."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from relax_core.config import TrainerConfig

Part = Literal["vision_tower", "vision_projection", "audio_tower", "audio_projection", "language_model"]
"""Of a model: its towers, what fits their features into the language model, and that."""


class TorchTrainerConfig(TrainerConfig):
    """AdamW on one device per rank, for any model of transformers that writes text."""

    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="How several ranks share the work, the updates being the same: `ddp`: each has the whole model; "
        "`fsdp`: parameters, gradients and optimizer are dealt to them (FSDP2), and gathered layer by layer where they "
        "are needed.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute each layer in the backward pass: less memory, a third more work."
    )
    logprob_chunk_tokens: int | None = Field(
        None, ge=0, description="Tokens whose logits are held at once; absent: as many as fit into 512 MiB; 0: all."
    )
    packing: bool = Field(
        False,
        description="Rows of a micro-batch end to end, attending only to themselves, instead of padded to the longest. "
        "Pays with `flash_attention_2`; `sdpa` and `eager` hold a mask of all tokens by all tokens.",
    )
    share_prompts: bool | None = Field(
        None,
        description="Tokens with which all rows of a group begin go through the model once, the rest of each row "
        "behind them. Absent: on a CPU, for groups of up to 256 tokens, where it pays. Attention masks the tokens of "
        "other rows, it does not skip them. Needs `sdpa` or `eager` and layers that see all tokens before; the mask is "
        "of all tokens of a group by all.",
    )

    freeze: tuple[Part, ...] = Field(
        (),
        description="Parts of a model that sees or hears which are not trained. A projection fits what a tower makes "
        "to the language model.",
    )

    def ignored_on_one_rank(self) -> Mapping[str, object]:
        return {"parallel": self.parallel} if self.parallel == "fsdp" else {}

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        if self.packing and self.share_prompts:
            raise ValueError("share_prompts: true and packing: true exclude each other; keep one of them")
        return self
