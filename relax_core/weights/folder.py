"""The newest weights of a run as a Hugging Face folder: those files of the run's own model, with other weights."""

import os
import shutil
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from relax_core.api.errors import ConfigError, WeightSyncError
from relax_core.weights.client import WeightClient
from relax_core.weights.manifest import verify_bucket

WEIGHTS = ("*.safetensors", "*.bin", "*.index.json", "*.pt", "*.gguf")
MADE = ("warm_start", "model")
"""Folders that a run makes for the policy that it begins with, the later one first."""


def first_policy(run: Path, configured: Path | None) -> Path:
    """The folder of the policy that a run began with.

    Args:
        run: The run's folder.
        configured: Of ``model.path``, if that is how it was given.
    """
    return next((run / name for name in MADE if (run / name).is_dir()), configured or run)


def pull_newest(client: WeightClient, policy: Path, folder: Path) -> int:
    """Fetches and verifies what was published last, and writes it whole or not at all; returns its version.

    Args:
        client: Of the run.
        policy: A folder whose configuration and tokenizer are those of the weights.
        folder: Is made.

    Raises:
        ConfigError: The folder is there already.
        WeightSyncError: Nothing is published yet, or it did not arrive as it was sent.
    """
    if folder.exists():
        raise ConfigError(f"{folder} is there already; give a folder that is not")
    publication = client.newest()
    if publication is None:
        raise WeightSyncError("the run has published no weights yet")
    tensors: dict[str, Tensor] = {}
    for bucket in publication.buckets:
        verify_bucket(publication.manifest, bucket)
        tensors.update(bucket)
    if missing := sorted(publication.manifest.tensors.keys() - tensors.keys()):
        raise WeightSyncError(f"{len(missing)} tensors did not arrive, the first is {missing[0]}")
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    shutil.copytree(policy, partial, ignore=shutil.ignore_patterns(*WEIGHTS, "optimizer*"))
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    partial.rename(folder)
    return publication.manifest.version
