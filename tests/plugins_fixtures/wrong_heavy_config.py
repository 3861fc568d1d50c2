"""A configuration that only machines with a backend can check."""

import torch
from wrong_algorithms import Sound, SoundConfig


class HeavyConfig(SoundConfig):
    dtype: str = str(torch.float32)


class HeavyConfiguration(Sound):
    Config = HeavyConfig
