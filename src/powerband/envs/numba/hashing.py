"""Hashing: random numbers of the environments as a hash of stream, time and purpose, without generator state.

numba compiles these scalar functions for CPU threads and for CUDA. The number of threads, the split over ranks and the
device therefore do not change a bit. Arithmetic uses signed 64-bit integers, except inside the hash, because numba
converts a mix of uint64 and int64 to floats.
"""

from typing import Any

import numpy as np
from numba import njit

SLOTS_PER_TICK = 4096
"""Largest number of purposes per stream and point in time."""
UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Option of `njit` for functions without reference counts of arrays."""

# Everything is inlined into one loop, and arrays have no reference counts: a step takes 0.1 us instead of 1 us.
# These functions are not cached on disk: a cached function keeps the code that it inlined after that code has changed.
inlined = njit(forceinline=True, **UNCOUNTED)


@inlined
def splitmix64(z):
    """Mixes the bits of `z`: the finaliser of splitmix64 (Steele, Lea, Flood 2014), uint64 -> uint64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def stream_key(seed, number):
    """Returns the uint64 key of the stream of random numbers of one environment, for `random_bits`.

    Args:
        seed: uint64 seed of the run.
        number: Index of the environment among those of all ranks (processes of the training).
    """
    return splitmix64(splitmix64(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(number))


@inlined
def random_bits(key, tick, slot):
    """Returns 64 random bits as uint64, always the same ones for the same arguments.

    Args:
        key: Key of the stream of an environment, from `stream_key`.
        tick: Point in time, such as the number of steps of the environment.
        slot: Number of the purpose, 0..4095; different purposes at the same time get independent bits.
    """
    count = np.uint64(np.int64(tick) * SLOTS_PER_TICK + slot + 1)
    return splitmix64(key + count * np.uint64(0x9E3779B97F4A7C15))


@inlined
def random_integer(bits, n):
    """Returns an integer in 0..n-1 (int64) from the upper 32 of the random `bits`.

    `n` must be below 2**20. The bias is below n / 2**32.
    """
    return (np.int64(bits >> np.uint64(32)) * n) >> 32
