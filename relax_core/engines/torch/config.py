"""Settings of the embedded engine. Imports no torch."""

from pydantic import Field

from relax_core.config import EngineConfig


class TorchEngineConfig(EngineConfig):
    """How many trajectories are decoded together."""

    max_batch_rows: int = Field(512, ge=1, description="Trajectories decoded together; later ones wait.")
    max_batch_tokens: int = Field(
        262_144,
        ge=1,
        description="Bound of the key-value cache: trajectories decoded together, times the longest prompt and answer "
        "that one of them may reach. A single trajectory always runs.",
    )
    deterministic: bool = Field(
        False,
        description="No bit of an answer depends on what else is decoded, or when: the same prompt, seed and weights "
        "give the same ids and log-probabilities in every batch and every engine. Slower; needs `threads: 1`.",
    )
    context_length: int = Field(
        0, ge=0, description="Longest prompt and answer together, in tokens; 0: the model's max_position_embeddings."
    )
