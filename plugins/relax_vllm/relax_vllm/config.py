"""Settings of the vLLM engine. Imports neither vllm nor torch."""

from pydantic import Field

from relax_core.config import EngineConfig


class VLLMEngineConfig(EngineConfig):
    """vLLM's own names, where it has one."""

    kv_cache_memory_bytes: int = Field(
        128 * 2**20,
        ge=0,
        description="Memory of the key-value cache; must hold one sequence of `max_model_len`. 0: vLLM takes what is "
        "left of 0.92 of the device's memory.",
    )
    max_model_len: int = Field(
        0, ge=0, description="Longest prompt and answer together, in tokens; 0: what the model's configuration says."
    )
    max_num_seqs: int = Field(256, ge=1, description="Trajectories decoded together; later ones wait.")
    enforce_eager: bool = Field(True, description="Off: vLLM compiles the model or captures CUDA graphs at start.")
    enable_prefix_caching: bool = Field(
        True, description="Prompts share the keys and values of whole blocks (128 tokens on CPUs) they have in common."
    )
