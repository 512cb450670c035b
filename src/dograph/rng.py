"""Named, stateless randomness: every draw is a function of (seed, name, step, ...).

Nothing here has a state to save, so a resumed run needs none, and adding a draw somewhere never
shifts the draws elsewhere.
"""

import hashlib

import numpy as np

Name = str | int


def key64(seed: int, *name: Name) -> int:
    """A 64-bit key for this seed and name, the same on every machine and Python version."""
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in name)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(seed: int, *name: Name) -> np.random.Generator:
    """A counter-based generator for this seed and name."""
    return np.random.Generator(np.random.Philox(key=key64(seed, *name)))
