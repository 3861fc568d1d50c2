"""Mathematics shared by algorithms, one thought per file. Nothing here knows an algorithm, a mask or a process.

Formulas of tensors use tensor methods only, so that importing them does not import torch.
"""
