"""Registers the encoder of this package."""

from relax_core import Component, hookimpl


@hookimpl
def relax_encoders() -> list[Component]:
    """Images."""
    return [
        Component(
            "vision",
            "relax_vision.encoder:VisionEncoder",
            "relax_vision.config:VisionEncoderConfig",
            "Images for Qwen-VL and Qwen-Omni models: PNG, JPEG, WebP, GIF of any size, as patches.",
        )
    ]
