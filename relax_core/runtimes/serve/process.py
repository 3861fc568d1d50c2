"""What every process of a run sees to first, whatever it is for. Imports no torch."""

import os
from socket import gethostname

import ray

from relax_core.api.errors import ConfigError
from relax_core.runtimes.serve.assignment import Assignment
from relax_core.runtimes.serve.versions import check_versions


def prepare_process(assignment: Assignment, name: str) -> None:
    """Compares the installed versions with the controller's, and works where the run was started.

    Paths of a configuration may be relative to that folder. A process whose folder Ray has prepared
    (``--working-dir`` of ``ray job submit``) stays there.

    Args:
        assignment: What the run does.
        name: Of this process.

    Raises:
        PluginError: Versions differ.
        ConfigError: The folder is not on this node.
    """
    where = f"{name} on {gethostname()}"
    check_versions(assignment.versions, where)
    if "working_dir" in ray.get_runtime_context().runtime_env:
        return
    try:
        os.chdir(assignment.working_directory)
    except OSError as error:
        raise ConfigError(
            f"{where} cannot work in {str(assignment.working_directory)!r}, where the run was started: "
            f"{error.strerror}; share the folder, or use --working-dir of ray job submit"
        ) from error
