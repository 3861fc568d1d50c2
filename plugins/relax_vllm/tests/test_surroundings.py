"""What vLLM needs is set, what it disturbs is given back; needs no vLLM."""

import random

import numpy as np
import pytest
import torch
from relax_vllm.surroundings import prepare, undisturbed

from relax_core.api.errors import RelaxError


def test_random_states_and_threads_are_given_back() -> None:
    device = torch.device("cpu")
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = (random.random(), np.random.rand(), torch.rand(()).item())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    set_num_threads = torch.set_num_threads
    with pytest.raises(ZeroDivisionError), undisturbed(device):
        random.seed(2), np.random.seed(2), torch.manual_seed(2)
        torch.set_num_threads = lambda threads: None
        1 / 0  # noqa: B018
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    assert torch.set_num_threads is set_num_threads


def test_an_engine_in_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with pytest.raises(RelaxError, match="VLLM_ENABLE_V1_MULTIPROCESSING must be 0 or unset"):
        prepare(torch.device("cpu"))
