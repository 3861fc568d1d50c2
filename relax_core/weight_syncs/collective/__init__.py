"""Weights for engines in other processes, broadcast by torch.distributed."""
