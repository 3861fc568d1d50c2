"""The encoder keeps the contract of all encoders, of every format and for both kinds of audio tower."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from relax_audio.encoder import AudioEncoder
from sounds import noise, sound_file

from relax_core.api.context import ModelSource
from relax_core.api.media import Encoded, Kind
from relax_core.models.load import load_language_model
from relax_core.testing.encoder import EncoderContract, array_file

FORMATS = [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")]


class TestAudioEncoder(EncoderContract):
    @pytest.fixture(scope="class", params=["qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"])
    @classmethod
    def model(cls, request, folders):
        """A tower with real weights, however few."""
        cls.hears = load_language_model(ModelSource(folders[request.param]))
        return request.param

    @pytest.fixture
    def encoder(self, model: str, make) -> AudioEncoder:
        return make(model)

    @pytest.fixture
    def examples(self) -> Mapping[Kind, Sequence[bytes]]:
        files = [
            sound_file(noise(9000 + 641 * number, number), 16000, container, subtype)
            for number, (container, subtype) in enumerate(FORMATS)
        ]
        stereo = np.stack([noise(12000), noise(12000, 1)], axis=1)
        return {"audio": [*files, sound_file(stereo, 22050), array_file(noise(48321)), array_file(noise(100 * 160))]}

    def features(self, encoded: Encoded) -> int:
        frames = encoded.arrays["features"]
        mask = torch.ones(1, frames.shape[1], dtype=torch.long)
        heard = self.hears.get_audio_features(torch.from_numpy(frames)[None], feature_attention_mask=mask)
        return len(heard.last_hidden_state)
