"""Embedded sinks: the terminal, JSON lines in the run's folder, TensorBoard."""
