"""The peers are imported once: it takes them ten to twenty seconds."""

import pytest


@pytest.fixture(scope="session")
def peers() -> None:
    """Skips where one of them is not installed."""
    for module, needed in {"trl": "trl", "verl.trainer.ppo.core_algos": "verl"}.items():
        pytest.importorskip(module, reason=f"{needed} is not installed: `make test-backends` compares with it")
