"""Weights for engines in other processes, through files that both sides can read."""
