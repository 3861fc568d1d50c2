"""The source hands out tasks, each once per epoch, in an order that only the seed decides."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relax_core.api.columns import IntArray
from relax_core.api.dataset import Dataset
from relax_core.api.errors import ConfigError, RelaxError
from relax_core.api.rows import Task
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.seeds import derive_seed
from relax_core.dataflow.staleness import Admission
from relax_core.rewards.processes import describe


@dataclass(frozen=True)
class IssuedTask:
    """A task on its way: ``group`` is unique in the stage, ``attempt`` counts how often it was handed out."""

    group: int
    epoch: int
    task: Task
    attempt: int = 1


class Source:
    """Cursor over a dataset.

    Args:
        dataset: Where tasks come from.
        seed: Base seed; each epoch has its own permutation.
        ledger: Every task handed out is recorded as issued.
        admission: How many groups may be under way.
        epochs: Passes over the dataset; ``None`` is without end.
        needed: Groups to be trained on in all; no task is issued that would be one too many. ``None``: no limit.
        in_publication: Groups of a batch that is trained, and whose weights have not reached every engine: they count
            as queued, or groups would start under weights that are one version older than the bound allows.
    """

    def __init__(
        self,
        dataset: Dataset,
        seed: int,
        ledger: Ledger,
        admission: Admission,
        epochs: int | None = None,
        needed: int | None = None,
        in_publication: Callable[[], int] = lambda: 0,
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._ledger = ledger
        self._admission = admission
        self._epochs = epochs
        self._needed = needed
        self._in_publication = in_publication
        self._issued = 0
        self._open: dict[int, IssuedTask] = {}
        self._order: tuple[int, IntArray] | None = None

    @property
    def exhausted(self) -> bool:
        """Whether the last epoch has been handed out."""
        return self._epochs is not None and self._issued >= self._epochs * len(self._dataset)

    @property
    def complete(self) -> bool:
        """Whether the next batches have all their groups: what still runs is surplus."""
        return self._admission.complete(self._stages()["generated"] + self._in_publication())

    def admitted(self, patience: float = 0.0) -> list[IssuedTask]:
        """All tasks that may start now, issued; without waiting, since nothing changes while a caller waits here.

        Raises:
            RelaxError: The dataset failed; names the task.
        """
        stages = self._stages()
        room = self._admission.room(stages["issued"], stages["generated"] + self._in_publication())
        if self._needed is not None:
            counts = self._ledger.counts()
            room = min(room, self._needed - counts["trained"] - counts["pending"])
        tasks: list[IssuedTask] = []
        while len(tasks) < room and not self.exhausted:
            tasks.append(self._issue())
        return tasks

    def _stages(self) -> Counter[str]:
        return Counter(self._ledger.pending.values())

    def _issue(self) -> IssuedTask:
        issued = self._task_of(self._issued)
        self._issued += 1
        self._ledger.issued(issued.group, issued.task.index, issued.epoch)
        self._open[issued.group] = issued
        return issued

    def _task_of(self, group: int) -> IssuedTask:
        """Groups are numbered in the order of their tasks."""
        epoch, position = divmod(group, len(self._dataset))
        return IssuedTask(group, epoch, self._task(int(self._permutation(epoch)[position])))

    def _task(self, index: int) -> Task:
        try:
            return self._dataset[index]
        except RelaxError:
            raise
        except Exception as error:  # whatever a plugin raises, it is the dataset that cannot go on
            raise RelaxError(f"dataset: task {index} {describe(error)}") from error

    def unfinished(self) -> list[IssuedTask]:
        """Tasks that were handed out and not finished: whoever had them is gone, and they are handed out once more."""
        self._open = {group: replace(issued, attempt=issued.attempt + 1) for group, issued in self._open.items()}
        return list(self._open.values())

    def upcoming(self, most: int) -> list[Task]:
        """The tasks that will be handed out next, up to ``most``, for whoever prepares them; nothing is issued."""
        end = self._issued + most
        if self._epochs is not None:
            end = min(end, self._epochs * len(self._dataset))
        return [self._task_of(group).task for group in range(self._issued, end)]

    def attempts(self, group: int) -> int:
        """How often a group that is not finished was handed out."""
        return self._open[group].attempt

    def finished(self, group: int) -> None:
        """The group is in the transport, or dropped. Saying so twice is allowed."""
        self._open.pop(group, None)

    def reopen(self, groups: Iterable[int]) -> None:
        """The rows of these groups are lost: they are handed out once more, by :meth:`unfinished`."""
        lost = {group: self._task_of(group) for group in groups if group not in self._open}
        self._open = dict(sorted({**self._open, **lost}.items()))

    def _permutation(self, epoch: int) -> IntArray:
        if self._order is None or self._order[0] != epoch:
            generator = np.random.default_rng(derive_seed(self._seed, "order", epoch))
            self._order = (epoch, generator.permutation(len(self._dataset)))
        return self._order[1]

    def state(self) -> dict[str, Any]:
        """Where the cursor stands and which groups are not finished, as JSON values."""
        return {
            "issued": self._issued,
            "open": [[issued.group, issued.epoch, issued.task.index, issued.attempt] for issued in self._open.values()],
            "size": len(self._dataset),
            "fingerprint": self._dataset.fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues where :meth:`state` stood; :meth:`unfinished` then hands out once more what was not finished.

        Raises:
            ConfigError: The dataset is not the one the state was taken with.
        """
        require_same_tasks(state, self._dataset)
        self._issued = state["issued"]
        self._open = {
            group: IssuedTask(group, epoch, self._task(index), attempt)
            for group, epoch, index, attempt in state["open"]
        }


def require_same_tasks(state: Mapping[str, Any], dataset: Dataset) -> None:
    """Compares a dataset with the one of which a source stored its state.

    Raises:
        ConfigError: They are not the same.
    """
    if state["fingerprint"] != dataset.fingerprint or state["size"] != len(dataset):
        raise ConfigError("dataset: its content changed since the checkpoint, so the run cannot be continued exactly")
