"""Batched sampling from any Hugging Face causal language model, in the process that asks."""
