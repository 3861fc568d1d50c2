"""Embedded trainers, one folder each; and what trainers of plugins share with them."""
