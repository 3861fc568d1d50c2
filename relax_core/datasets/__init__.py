"""Embedded datasets."""
