"""Compiled streams: the functions of `streams` for a CPU, compiled by numba.

PyTorch computes a few numbers with 20 to 200 operators, which take 60 to 600 us; these functions take less than a tenth
of that. The first use on a machine compiles for some seconds and stores the result on disk, next to this file or in
``NUMBA_CACHE_DIR``. A cached function of another file that uses this one passes it to `source_checksum`.

Shapes: n streams with one key each, h numbers per stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from powerband.core.machine.cache_stamp import source_checksum
from powerband.core.noise import streams
from powerband.core.noise.streams import GOLDEN, MIX_1, MIX_2, OCTAVES
from powerband.core.optim import compiled_adam
from powerband.core.optim.compiled_adam import OPTIONS, compiled

STEP, FIRST, SECOND = (np.uint64(number % 2**64) for number in (GOLDEN, MIX_1, MIX_2))
TWO, UNIT_32, ANGLE_UNIT = np.float32(2), np.float32(2.0**-32), np.float32(2 * math.pi * 2.0**-24)
PINK_SCALE = np.float32(OCTAVES**-0.5)


@compiled
def splitmix64(x):
    """Hashes a uint64, as `streams.splitmix64_` does."""
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


@compiled
def random_bits(keys, counter, count):
    """Returns (n, count) uint64 of 64 random bits each, the same as `Noise.bits`.

    `keys` (n,) int64 are the keys of the n streams. `counter` (1,) int64 is the number of draws so far, and is
    increased.
    """
    bits = np.empty((len(keys), count), np.uint64)
    for n in range(len(keys)):
        stream = splitmix64(np.uint64(keys[n]) + np.uint64(counter[0]) * STEP)
        for index in range(count):
            bits[n, index] = splitmix64(stream + np.uint64(index + 1) * STEP)
    counter[0] += 1
    return bits


@compiled
def box_muller(bits, is_sine):
    """Returns one of the two standard normal numbers of 64 random bits, as `streams.box_muller` does."""
    radius = math.sqrt(-TWO * math.log(np.float32((bits >> np.uint64(32)) + np.uint64(1)) * UNIT_32))
    angle = np.float32(bits & np.uint64(2**24 - 1)) * ANGLE_UNIT
    return np.float32(radius * (math.sin(angle) if is_sine else math.cos(angle)))


@compiled
def draw_normal(numbers, keys, counter):
    """Fills numbers (n, h) float32 with standard normal numbers, the same as `Noise.normal`.

    `keys` (n,) and `counter` (1,) int64 are those of `Noise`; the counter is increased.
    """
    count = numbers.shape[1]
    half = (count + 1) // 2
    bits = random_bits(keys, counter, half)
    for n in range(len(numbers)):
        for number in range(count):
            numbers[n, number] = box_muller(bits[n, number % half], number >= half)


@compiled
def draw_pink(numbers, keys, counter):
    """Fills numbers (n, h) float32 with pink noise, the same as `Noise.pink`; arguments are those of `draw_normal`."""
    count = numbers.shape[1]
    half = (count + 1) // 2
    numbers[:] = 0
    for n in range(len(numbers)):
        for octave in range(OCTAVES):
            key = np.uint64(keys[n]) + np.uint64(octave + 1) * FIRST
            phase = splitmix64(key) & np.uint64((1 << octave) - 1)
            period = (np.uint64(counter[0]) + phase) >> np.uint64(octave)
            stream = splitmix64(key + period * STEP)
            for number in range(count):
                bits = splitmix64(stream + np.uint64(number % half + 1) * STEP)
                numbers[n, number] += box_muller(bits, number >= half)
        for number in range(count):
            numbers[n, number] *= PINK_SCALE
    counter[0] += 1


@cache
def kernels() -> tuple[Any, Any, Any, Any]:
    """Returns four compiled functions that fill an array (n, h): with bits, integers, normal numbers and pink noise.

    Their arguments are the array, the keys (n,) and the counter (1,) of the streams, which is increased; for integers
    also the limit (1,), below which they are uniform.
    """
    stamp = source_checksum(compiled_adam, streams)

    @njit(cache=True, **OPTIONS)
    def bits(numbers, keys, counter):
        drawn = random_bits(keys, counter, numbers.shape[1] + 0 * stamp)
        for n in range(len(numbers)):
            for number in range(numbers.shape[1]):
                numbers[n, number] = np.int64(drawn[n, number])

    @njit(cache=True, **OPTIONS)
    def integers(numbers, keys, counter, high):
        drawn = random_bits(keys, counter, numbers.shape[1] + 0 * stamp)
        for n in range(len(numbers)):
            for number in range(numbers.shape[1]):
                numbers[n, number] = np.int64(
                    ((drawn[n, number] >> np.uint64(32)) * np.uint64(high[0])) >> np.uint64(32)
                )

    @njit(cache=True, **OPTIONS)
    def normal(numbers, keys, counter):
        draw_normal(numbers, keys, counter)
        counter[0] += 0 * stamp

    @njit(cache=True, **OPTIONS)
    def pink(numbers, keys, counter):
        draw_pink(numbers, keys, counter)
        counter[0] += 0 * stamp

    return bits, integers, normal, pink


def stream_bits(keys: Tensor, counter: Tensor, count: int) -> Tensor:
    """Computes the same numbers as `streams.stream_bits`, and increases `counter`."""
    return _filled(0, torch.int64, keys, counter, count)


def stream_integers(keys: Tensor, counter: Tensor, count: int, high: int | Tensor) -> Tensor:
    """Computes the same numbers as `streams.stream_integers`, and increases `counter`."""
    return _filled(1, torch.int64, keys, counter, count, torch.as_tensor(high, dtype=torch.int64).view(1).numpy())


def stream_normal(keys: Tensor, counter: Tensor, count: int) -> Tensor:
    """Computes the numbers of `streams.stream_normal`, up to the last digit, and increases `counter`."""
    return _filled(2, torch.float32, keys, counter, count)


def stream_pink(keys: Tensor, counter: Tensor, count: int) -> Tensor:
    """Computes the numbers of `streams.stream_pink`, up to the last digits, and increases `counter`."""
    return _filled(3, torch.float32, keys, counter, count)


def _filled(kernel: int, dtype: torch.dtype, keys: Tensor, counter: Tensor, count: int, *arguments: Any) -> Tensor:
    """Returns an array (n, count) that a kernel has filled."""
    numbers = torch.empty(len(keys), count, dtype=dtype)
    kernels()[kernel](numbers.numpy(), keys.numpy(), counter.view(1).numpy(), *arguments)
    return numbers


COMPILED: dict[str, Callable[..., Tensor]] = {
    draw.__name__: draw for draw in (stream_bits, stream_integers, stream_normal, stream_pink)
}
"""Name of a function of `streams` -> its compiled counterpart."""
