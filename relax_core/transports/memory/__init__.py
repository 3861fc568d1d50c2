"""Rows in the memory of one process, shared by its threads."""
