"""Tasks that reasoning-gym generates, seeded."""

import json
from copy import deepcopy
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from relax_core.api.context import Context
from relax_core.api.dataset import Dataset
from relax_core.api.errors import ConfigError, PluginError
from relax_core.api.rows import Task
from relax_core.datasets.config import ReasoningGymDatasetConfig
from relax_core.rewards.reasoning_gym import METADATA_KEY
from relax_core.suggestions import did_you_mean


class ReasoningGymDataset(Dataset):
    """The label is the answer; the metadata say how the reward ``reasoning_gym`` makes the entry again.

    Raises:
        PluginError: reasoning-gym is not installed.
        ConfigError: Unknown task or option, or a value that the task refuses.
    """

    def __init__(self, config: ReasoningGymDatasetConfig, context: Context) -> None:
        if find_spec("reasoning_gym") is None:
            raise PluginError('dataset reasoning_gym needs reasoning-gym: pip install "relax-core[tasks]"')
        self.task = config.task
        self.arguments = {**config.options, "size": config.size, "seed": config.seed}
        self._entries = _create(config.task, self.arguments)
        settings = json.dumps([version("reasoning-gym"), config.task, self.arguments], sort_keys=True)
        self._fingerprint = sha256(settings.encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        entry = self._entries[index]
        source = {"task": self.task, "arguments": deepcopy(self.arguments), "index": index}
        return Task(index, entry["question"], entry["answer"], {METADATA_KEY: source})

    @property
    def fingerprint(self) -> str:
        return self._fingerprint


def _create(task: str, arguments: dict[str, Any]) -> Any:
    import dataclasses

    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise ConfigError(f"dataset.task: reasoning-gym has no task {task!r}{did_you_mean(task, DATASETS)}")
    known = {field.name for field in dataclasses.fields(DATASETS[task][1])}
    for option in arguments:
        if option not in known:
            raise ConfigError(f"dataset.options: {task} has no option {option!r}{did_you_mean(option, known)}")
    try:
        return reasoning_gym.create_dataset(task, **arguments)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"dataset.options: {task} refuses {arguments}: {error}") from error
