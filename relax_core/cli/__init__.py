"""The command line. Importing it, and asking for help, imports no torch, ray or transformers."""

from relax_core.cli.main import main

__all__ = ["main"]
