"""The project's quickstart learns with Megatron-Core, cut by tensors and by layers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("megatron.core")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("layout", ["tensor_parallel", "pipeline_parallel"])
def test_the_quickstart_learns(tmp_path: Path, layout: str) -> None:
    program = str(Path(sys.executable).with_name("relax"))
    settings = ["trainer.name=megatron", f"trainer.{layout}=2"]
    command = [program, "train", "examples/quickstart/text.yaml", "--runs-dir", str(tmp_path), "--name", "run"]
    options = [part for setting in settings for part in ("--set", setting)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, *options], cwd=ROOT, env=environment, check=True, timeout=800)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval_last"] - summary["eval_first"] >= 0.2
    assert summary["issued"] == summary["trained"] == 3200
