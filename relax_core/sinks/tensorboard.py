"""TensorBoard event files."""

import textwrap
from collections.abc import Mapping

from relax_core.api.context import Context
from relax_core.api.errors import PluginError
from relax_core.api.sink import RunInfo, Sink
from relax_core.sinks.config import TensorboardSinkConfig


class TensorboardSink(Sink):
    """Scalars and texts in ``<run>/tensorboard``. TensorBoard has no place for events; other sinks keep them.

    Each stream has tags, and so a step axis, of its own: names of the stream ``train`` are the tags, all others get
    their stream in front (``warmup/train/loss``) unless they start with it. After a resume, steps since the checkpoint
    appear twice.
    """

    def __init__(self, config: TensorboardSinkConfig, context: Context) -> None: ...

    def start(self, run: RunInfo) -> None:
        """Opens a new event file; ``PluginError`` where TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PluginError(f"sink tensorboard: {error}; install it with: pip install tensorboard") from error
        self._writer = SummaryWriter(str(run.directory / "tensorboard"))

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(_tag(stream, name), value, step)
        self._writer.flush()

    def text(self, stream: str, step: int, name: str, value: str) -> None:
        encodable = value.encode("utf-8", "backslashreplace").decode()
        # TensorBoard renders Markdown; four spaces make it show the text as it is.
        self._writer.add_text(_tag(stream, name), textwrap.indent(encodable, " " * 4), step)

    def close(self) -> None:
        self._writer.close()


def _tag(stream: str, name: str) -> str:
    return name if stream == "train" or name.startswith(f"{stream}/") else f"{stream}/{name}"
