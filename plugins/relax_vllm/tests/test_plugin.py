"""A configuration can be checked where vLLM is not installed."""

import subprocess
import sys


def test_plugin_and_settings_import_neither_vllm_nor_torch() -> None:
    program = "import relax_vllm.plugin, relax_vllm.config, sys; print({'vllm', 'torch'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.strip() == "set()"
