"""Settings of the Megatron-Core trainer. Imports no torch and no backend."""

from pydantic import Field

from relax_core.config import TrainerConfig


class MegatronTrainerConfig(TrainerConfig):
    """AdamW over tensor, pipeline and data parallel ranks, each a process of its own on this machine."""

    tensor_parallel: int = Field(1, ge=1, description="Ranks that hold each matrix together.")
    pipeline_parallel: int = Field(1, ge=1, description="Stages of layers; micro-batches run through them as 1F1B.")
    data_parallel: int = Field(1, ge=1, description="Copies of all that, each with its share of the micro-batches.")
    start_timeout: float = Field(600.0, gt=0, description="Longest time in seconds for all ranks to load the model.")
    call_timeout: float = Field(1800.0, gt=0, description="Longest time in seconds for anything the ranks are asked.")

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
