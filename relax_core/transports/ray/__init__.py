"""Rows shared by the processes of a run, in an actor of its Ray cluster."""
