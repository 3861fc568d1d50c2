"""Registers the encoders of this package."""

from relax_core import Component, hookimpl


@hookimpl
def relax_encoders() -> list[Component]:
    """Images, and videos."""
    return [
        Component(
            "vision",
            "relax_vision.encoder:VisionEncoder",
            "relax_vision.config:VisionEncoderConfig",
            "Images for Qwen-VL and Qwen-Omni models: PNG, JPEG, WebP, GIF of any size, as patches.",
        ),
        Component(
            "video",
            "relax_vision.video:VideoEncoder",
            "relax_vision.config:VideoEncoderConfig",
            "Videos for Qwen-VL and Qwen-Omni models: MP4, WebM, AVI, GIF; some of the frames, as patches.",
        ),
    ]
