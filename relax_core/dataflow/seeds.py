"""One base seed, many independent streams."""

import hashlib


def derive_seed(base: int, *parts: int | str) -> int:
    """A 63-bit seed from the run's base seed and what it is for, equal on every machine.

    Example: ``derive_seed(config.seed, "trajectory", group, sample)``.
    """
    text = "/".join([str(base), *(f"{type(part).__name__}:{part}" for part in parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
