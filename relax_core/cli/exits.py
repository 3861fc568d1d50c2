"""How a command ends: 0 well, 1 the work failed, 2 bad input, 3 a selected plugin is not usable, 130 interrupted."""

import sys
from collections.abc import Callable

from relax_core.api.errors import RelaxError


def run(program: Callable[[], None]) -> None:
    """Runs a program and turns an error that Relax raises into one line on stderr and the error's exit code."""
    try:
        program()
    except RelaxError as error:
        print(f"relax: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
