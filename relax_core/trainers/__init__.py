"""Embedded trainers, one folder each."""
