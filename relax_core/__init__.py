"""Relax: asynchronous reinforcement learning for the post-training of language models.

Only the names a plugin's ``plugin.py`` needs are here; importing this package imports no torch, ray or transformers.
"""

from relax_core._version import __version__
from relax_core.component import Component, hookimpl

__all__ = ["Component", "__version__", "hookimpl"]
