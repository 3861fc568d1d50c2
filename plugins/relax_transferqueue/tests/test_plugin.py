"""A configuration can be checked where TransferQueue is not installed."""

import subprocess
import sys

import pytest
from pydantic import ValidationError
from relax_transferqueue.config import TransferQueueTransportConfig


def test_plugin_and_settings_import_neither_transferqueue_nor_ray_nor_torch() -> None:
    heavy = "{'transfer_queue', 'ray', 'torch', 'tensordict'}"
    program = f"import relax_transferqueue.plugin, relax_transferqueue.config, sys; print({heavy} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.strip() == "set()"


def test_units_of_a_transferqueue_that_runs_already_cannot_be_set() -> None:
    assert TransferQueueTransportConfig(attach=True).runtimes == ("serve",)
    with pytest.raises(ValidationError, match="units would be ignored"):
        TransferQueueTransportConfig(attach=True, units=2)
