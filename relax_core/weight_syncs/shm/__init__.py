"""Weights for engines in other processes of the same host, through memory that all of them map."""
