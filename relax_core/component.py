"""What a plugin hands over: names and import strings, never objects.

A plugin's ``plugin.py`` is imported by every command, so it may import only this module's names. The class behind a
component is imported in the process that uses it, and only there.
"""

from dataclasses import dataclass

import pluggy

PROJECT = "relax"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class Component:
    """A named implementation of one kind.

    Args:
        name: What a configuration file writes, as in ``algorithm: {name: grpo}``.
        target: ``"package.module:Class"``. The class is built as ``Class(config, context)``.
        config: ``"package.module:ConfigClass"``, a subclass of :class:`relax_core.config.Config`. It must import
            without the backend, so that a configuration can be checked on a laptop.
        summary: One line for ``relax plugins show``.
    """

    name: str
    target: str
    config: str
    summary: str = ""
