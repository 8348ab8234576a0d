"""Random draws of the environments: a number is a hash of who draws, when and what for, of nothing before it.

Scalar functions that numba compiles for CPU threads and for CUDA alike, so the number of threads, the split over ranks
and the device change no bit. Arithmetic is in signed 64-bit integers (numba turns a mix of uint64 and int64 into
floats), except inside the hash.
"""

import numpy as np
from numba import njit

SLOTS = 4096
"""Purposes that one stream has at one tick."""

# All in one loop and without reference counts of arrays: a step is eight times as fast (1 us -> 0.1 us).
# Not cached on disk: a cached function keeps what it inlined from another file after that file has changed.
inlined = njit(forceinline=True, _nrt=False)


@inlined
def mix(z):
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): uint64 -> uint64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def stream_key(seed, number):
    """uint64 key of a stream, from the uint64 `seed` and the number of a board or a mission over all ranks."""
    return mix(mix(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(number))


@inlined
def draw(key, tick, slot):
    """64 random bits for purpose `slot` (0..4095) at `tick`."""
    count = np.uint64(np.int64(tick) * SLOTS + slot + 1)
    return mix(key + count * np.uint64(0x9E3779B97F4A7C15))


@inlined
def below(bits, n):
    """Integer in 0..n-1 (int64) from the upper 32 of the random `bits`; `n` under 2**20, bias under n / 2**32."""
    return (np.int64(bits >> np.uint64(32)) * n) >> 32
