"""How rows become batches: pure functions and small state, no I/O."""
