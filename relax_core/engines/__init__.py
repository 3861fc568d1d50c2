"""Embedded inference engines, one folder each."""
