"""The server's process as the one that opened the transport sees it: started, watched, ended."""

import json
import selectors
import subprocess
import sys
from pathlib import Path

from relax_core.api.errors import DeadlineExceeded, TransportError
from relax_core.transports.memory.declarations import Declarations

START_SECONDS = 60.0
"""What the process may need until it listens, on a busy machine."""

CLOSE_SECONDS = 5.0
"""How long it may take to leave by itself."""

SERVER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from relax_core.transports.shm.server import main; main(sys.argv[2])"
)
"""What the process runs; modules are found where this process finds them."""


class ServerProcess:
    """A server that listens. It ends with :meth:`close`, or with this process, whatever ends that.

    Args:
        folder: Of the run; its socket is put there.
        declared: Columns and consumers.
        capacity: Bytes of rows and blobs; 0 is unbounded.

    Raises:
        TransportError: It could not start; the reason is on standard error.
        DeadlineExceeded: It has not started in time.
    """

    def __init__(self, folder: Path, declared: Declarations, capacity: int) -> None:
        command = [sys.executable, "-c", SERVER, json.dumps(sys.path), str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        settings = json.dumps({"declared": declared.state(), "capacity": capacity}) + "\n"
        try:
            self._await_start(settings.encode())
        except BaseException:
            self._process.kill()
            self.close()
            raise

    @property
    def id(self) -> int:
        """Id of the process."""
        return self._process.pid

    def close(self) -> None:
        """Lets the server leave; ends it when it does not."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await_start(self, settings: bytes) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(settings)
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(START_SECONDS):
                raise DeadlineExceeded(f"the transport's server has not started within {START_SECONDS:g} s")
        if not self._process.stdout.readline():
            raise TransportError(f"the transport's server ended with exit code {self._process.wait()}")
