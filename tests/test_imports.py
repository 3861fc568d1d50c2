"""Commands that only look start fast and run without the heavy packages: what they import is a promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "ray", "transformers"}
EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart" / "text.yaml"

PROGRAM = """
import sys
from relax_core.cli import main
sys.argv = ["relax", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    status = end.code
print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
sys.exit(status)
"""


def imported(code: str, *arguments: str) -> set[str]:
    """Packages that a fresh interpreter has imported after running the code, which prints them last on stderr."""
    environment = {**os.environ, "NO_COLOR": "1"}
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return set(result.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["models", "list"],
        ["plugins", "list"],
        ["plugins", "show", "relax-core"],
        ["config", "check", str(EXAMPLE)],
        ["plan", str(EXAMPLE)],
    ],
    ids=" ".join,
)
def test_commands_that_only_look_import_no_heavy_package(arguments: list[str]) -> None:
    packages = imported(PROGRAM, *arguments)
    assert "relax_core" in packages
    assert not packages & HEAVY


@pytest.mark.parametrize(
    "module",
    [
        "relax_core",
        "relax_core.plugin",
        "relax_core.registry",
        "relax_algos.plugin",
        "relax_audio.plugin",
        "relax_megatron.plugin",
        "relax_transferqueue.plugin",
        "relax_vision.plugin",
        "relax_vllm.plugin",
    ],
)
def test_what_every_command_loads_imports_not_even_pydantic(module: str) -> None:
    packages = imported(f"import sys, {module}; print(*sys.modules, file=sys.stderr)")
    assert module in packages
    assert not packages & {*HEAVY, "numpy", "pydantic", "rich", "typer"}
