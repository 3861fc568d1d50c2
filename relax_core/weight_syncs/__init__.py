"""Embedded carriers of weights, one folder each."""
