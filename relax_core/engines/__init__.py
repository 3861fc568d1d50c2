"""Embedded inference engines, one folder each; and what engines of plugins share with them."""
