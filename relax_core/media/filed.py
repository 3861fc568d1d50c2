"""Media that are inside of a dataset become files of the run: rows name them, rewards and people open them."""

import mimetypes
import os
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from relax_core.api.dataset import Dataset
from relax_core.api.media import MediaError, Medium
from relax_core.api.rows import Task
from relax_core.media.sources import DATA_URL, content_of

MEDIA = "media"
"""Folder within that of a run."""

ENDINGS = {"application/x-npy": ".npy"}
"""Of types that nobody registered."""


class FiledMedia(Dataset):
    """A dataset whose tasks name files where they had data URLs.

    Each content is one file, whose name is its SHA-256. A data URL that is damaged stays as it is.

    Args:
        dataset: Where tasks come from.
        directory: The run's folder.
    """

    def __init__(self, dataset: Dataset, directory: Path) -> None:
        self._dataset = dataset
        self._folder = directory.absolute() / MEDIA

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Task:
        task = self._dataset[index]
        if not any(DATA_URL.fullmatch(medium.source) for medium in task.media):
            return task
        return replace(task, media=tuple(map(self._filed, task.media)))

    @property
    def fingerprint(self) -> str:
        return self._dataset.fingerprint

    def _filed(self, medium: Medium) -> Medium:
        url = DATA_URL.fullmatch(medium.source)
        if url is None:
            return medium
        try:
            data = content_of(url)
        except MediaError:
            return medium
        ending = ENDINGS.get(url["type"]) or mimetypes.guess_extension(url["type"]) or ""
        path = self._folder / f"{sha256(data).hexdigest()}{ending}"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.partial-{os.getpid()}-{threading.get_ident()}")
            aside.write_bytes(data)
            aside.rename(path)
        return Medium(medium.kind, str(path))
