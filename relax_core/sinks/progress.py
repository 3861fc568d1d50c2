"""Live progress bars below everything else that is printed."""


class ProgressBars:
    """One bar per stream on standard error, drawn by rich (which honours ``NO_COLOR``)."""

    def __init__(self) -> None:
        # Imported here because runs without a terminal have no use for rich.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def update(self, stream: str, step: int, total: int | None, values: str) -> None:
        """Moves a stream's bar to ``step``; without a total it shows activity until another stream begins."""
        if stream not in self._tasks:
            for earlier in self._progress.tasks:
                if earlier.total is None:
                    self._progress.update(earlier.id, total=earlier.completed)
            # Starting at the present step keeps the updates before a resume out of the speed.
            self._tasks[stream] = self._progress.add_task(stream, total=total, completed=step, values=values)
        else:
            self._progress.update(self._tasks[stream], completed=step, values=values)

    def print(self, text: str) -> None:
        """Prints above the bars, as it is: neither markup nor highlighting."""
        self._progress.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        """Leaves the bars as they are and gives the terminal back."""
        self._progress.stop()
