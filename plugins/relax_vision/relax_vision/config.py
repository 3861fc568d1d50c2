"""Settings of the vision encoder. Imports no torch."""

from typing import Self

from pydantic import Field, model_validator

from relax_core.config import Config


class VisionEncoderConfig(Config):
    """How large images are to the model; everything else its folder says."""

    min_tokens: int | None = Field(
        None, ge=1, description="Smaller images are enlarged to so many placeholders; absent: what the folder says."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Larger images are reduced to so many placeholders; absent: what the folder says."
    )
    multiple: int | None = Field(
        None, ge=1, description="Sides are multiples of so many pixels; absent: those of one placeholder."
    )
    max_pixels: int = Field(
        89_478_485, ge=1, description="Files of images with more pixels are refused before they are decoded."
    )

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> Self:
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: {self.min_tokens} is more than max_tokens, which is {self.max_tokens}")
        return self
