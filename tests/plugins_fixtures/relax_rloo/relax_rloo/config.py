"""Settings."""

from pydantic import Field

from relax_core.api.algorithm import Requirements
from relax_core.config import AlgorithmConfig


class RLOOConfig(AlgorithmConfig):
    """Settings of RLOO."""

    scale: float = Field(1.0, gt=0, description="Factor of the advantages.")

    def requirements(self) -> Requirements:
        """A baseline needs at least one other trajectory."""
        return Requirements(min_group_size=2)
