"""Typed, strict configuration. Imports no torch."""

from relax_core.config.base import AlgorithmConfig, Config, EngineConfig, RewardConfig, TrainerConfig

__all__ = ["AlgorithmConfig", "Config", "EngineConfig", "RewardConfig", "TrainerConfig"]
