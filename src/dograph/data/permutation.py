"""A keyed bijection of 0..size-1: a shuffle that is never stored and has random access.

A balanced Feistel network permutes the smallest even-bit power of two that holds `size`; values
that fall outside are sent through again until they land inside (cycle walking), which keeps the
map one to one. Memory does not depend on `size`, so an epoch of any corpus can be shuffled.
"""

import numpy as np

ROUNDS = 6


def permute(position_N: np.ndarray, size_N: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Image of each position (in 0..size-1) under the bijection of its size chosen by its key."""
    bits_N = np.array([(size - 1).bit_length() for size in size_N.tolist()], dtype=np.uint64)
    half_bits_N = np.maximum((bits_N + np.uint64(1)) // np.uint64(2), np.uint64(1))
    size_N, key_N = size_N.astype(np.uint64), key_N.astype(np.uint64)
    value_N = _feistel(position_N.astype(np.uint64), half_bits_N, key_N)
    (outside,) = np.nonzero(value_N >= size_N)
    while len(outside):  # at least a quarter of the values of each size land inside: this ends soon
        value_N[outside] = _feistel(value_N[outside], half_bits_N[outside], key_N[outside])
        outside = outside[value_N[outside] >= size_N[outside]]
    return value_N.astype(np.int64)


def _feistel(value_N: np.ndarray, half_bits_N: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    mask_N = (np.uint64(1) << half_bits_N) - np.uint64(1)
    left_N, right_N = value_N >> half_bits_N, value_N & mask_N
    for _ in range(ROUNDS):
        left_N, right_N = right_N, left_N ^ (_mix(right_N ^ key_N) & mask_N)
        key_N = key_N + np.uint64(0x9E3779B97F4A7C15)
    joined_N: np.ndarray = (left_N << half_bits_N) | right_N
    return joined_N


def _mix(value_N: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser; uint64 arithmetic wraps around."""
    value_N = (value_N ^ (value_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value_N = (value_N ^ (value_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_N: np.ndarray = value_N ^ (value_N >> np.uint64(31))
    return mixed_N
