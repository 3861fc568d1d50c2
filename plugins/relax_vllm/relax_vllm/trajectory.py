"""What is kept of a request outside vLLM, which knows nothing of versions, so that an abort needs no answer from it."""

from dataclasses import dataclass

from relax_core.engines.trajectory import Trajectory


@dataclass(eq=False)
class VLLMTrajectory(Trajectory):
    """A trajectory that vLLM computes.

    Args:
        request_id: Names it in vLLM; keys may be used again while vLLM still holds the old request.
    """

    request_id: str
