"""The scripts for people run as they are typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_device_check_holds_without_an_accelerator() -> None:
    command = [sys.executable, "scripts/device_check.py", "--device", "cpu"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=850)
    steps = [json.loads(line) for line in output.stdout.splitlines()]
    assert len(steps) == 3
    assert all(step["holds"] for step in steps)
