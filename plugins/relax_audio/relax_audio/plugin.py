"""Registers the encoder of this package."""

from relax_core import Component, hookimpl


@hookimpl
def relax_encoders() -> list[Component]:
    """Sound."""
    return [
        Component(
            "audio",
            "relax_audio.encoder:AudioEncoder",
            "relax_audio.config:AudioEncoderConfig",
            "Sound for Qwen-Omni models: WAV, FLAC, Ogg, MP3 at any rate, as a log-mel spectrogram.",
        )
    ]
