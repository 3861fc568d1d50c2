"""Settings of the encoders. Imports no torch."""

from typing import Self

from pydantic import Field, model_validator

from relax_core.config import Config


class Limits(Config):
    """The least and the most placeholders."""

    min_tokens: int | None = Field(
        None, ge=1, description="What is smaller is enlarged to so many placeholders; absent: what the folder says."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="What is larger is reduced to so many placeholders; absent: what the folder says."
    )

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> Self:
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: {self.min_tokens} is more than max_tokens, which is {self.max_tokens}")
        return self


class VisionEncoderConfig(Limits):
    """How large images are to the model; everything else its folder says."""

    multiple: int | None = Field(
        None, ge=1, description="Sides are multiples of so many pixels; absent: those of one placeholder."
    )
    max_pixels: int = Field(
        89_478_485, ge=1, description="Files of images with more pixels are refused before they are decoded."
    )


class VideoEncoderConfig(Limits):
    """How many frames of a video a model sees, and how large; everything else its folder says."""

    fps: float = Field(2.0, gt=0, description="Frames of a second; an array of frames has so many.")
    min_frames: int = Field(4, ge=1, description="Of a shorter video so many are seen, as far as it has them.")
    max_frames: int = Field(768, ge=1, description="Of a longer video so many are seen, evenly spread.")
    max_pixels: int = Field(
        33_177_600, ge=1, description="Videos whose frames have more pixels are refused before they are decoded."
    )

    @model_validator(mode="after")
    def _frames_are_in_order(self) -> Self:
        if self.min_frames > self.max_frames:
            raise ValueError(f"min_frames: {self.min_frames} is more than max_frames, which is {self.max_frames}")
        return self
