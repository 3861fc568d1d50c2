"""The quickstart learns with this engine as it does with the embedded one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]


def test_held_out_accuracy_rises_and_engine_and_trainer_agree(tmp_path: Path) -> None:
    command = ["train", "examples/quickstart/text.yaml", "--runs-dir", tmp_path, "--set", "engine.name=vllm"]
    subprocess.run([Path(sys.executable).with_name("relax"), *command], cwd=ROOT, check=True, timeout=800)
    (run,) = tmp_path.iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_last"] - summary["eval_first"] >= 0.2
    assert summary["issued"] == summary["trained"] and summary["dropped"] == summary["pending"] == 0
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    gaps = [record["mismatch/probe_max"] for record in records if "mismatch/probe_max" in record]
    assert len(gaps) == summary["updates"]
    assert max(gaps) < 1e-4
