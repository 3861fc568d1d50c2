"""Weights for engines that live in the trainer's own process."""
