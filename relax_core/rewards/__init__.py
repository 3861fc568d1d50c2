"""Embedded rewards. Worker processes import this package, so nothing here imports torch."""
