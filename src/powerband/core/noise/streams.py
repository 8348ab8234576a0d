"""Streams: random numbers as hashes of the key of a stream, the number of the draw, and the position within the draw.

Source of the hash: Steele, Lea and Flood 2014, SplitMix64, in wrapping int64 arithmetic.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64
OCTAVES = 8
"""Terms of pink noise. The slowest changes every 2**7 draws."""


def splitmix64_(x: Tensor) -> Tensor:
    """Hashes every number of the int64 tensor `x` with the finaliser of SplitMix64, in place.

    The masks are needed because ``>>`` keeps the sign.
    """
    x.bitwise_xor_((x >> 30).bitwise_and_(2**34 - 1)).mul_(MIX_1)
    x.bitwise_xor_((x >> 27).bitwise_and_(2**37 - 1)).mul_(MIX_2)
    return x.bitwise_xor_((x >> 31).bitwise_and_(2**33 - 1))


def box_muller(bits: Tensor) -> Tensor:
    """Converts int64 numbers (..., h) with 64 random bits to standard normal numbers (..., 2 h) float32.

    Source: Box and Muller 1958.
    """
    radius = ((bits >> 32).bitwise_and_(2**32 - 1) + 1).to(torch.float32).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle = bits.bitwise_and_(2**24 - 1).to(torch.float32).mul_(2 * math.pi * 2.0**-24)
    return torch.cat([angle.cos().mul_(radius), angle.sin().mul_(radius)], -1)


def stream_bits(keys: Tensor, counter: Tensor, count: int) -> Tensor:
    """Computes (n, count) int64 numbers with 64 random bits: draw number `counter` (0-d) of the streams `keys` (n,)."""
    stream = splitmix64_(keys + counter * GOLDEN)
    index = torch.arange(1, count + 1, device=keys.device).mul_(GOLDEN) if keys.is_cuda else index_on_cpu(count)
    return splitmix64_(stream.unsqueeze(1) + index)


@cache
def index_on_cpu(count: int) -> Tensor:
    """Computes the terms (count,) int64 of the positions within a draw; cached, because a draw has few positions.

    On CUDA a cached tensor could belong to the memory of a captured graph.
    """
    return torch.arange(1, count + 1).mul_(GOLDEN)


def stream_normal(keys: Tensor, counter: Tensor, count: int) -> Tensor:
    """Computes (n, count) float32 standard normal numbers: draw number `counter` (0-d) of the streams `keys` (n,)."""
    return box_muller(stream_bits(keys, counter, (count + 1) // 2))[:, :count]


def stream_integers(keys: Tensor, counter: Tensor, count: int, high: int | Tensor) -> Tensor:
    """Computes (n, count) int64 numbers below `high` < 2**31: draw number `counter` (0-d) of streams `keys` (n,)."""
    bits = stream_bits(keys, counter, count)
    # The upper half of a 32 by 32 bit product avoids a division; its bias is below high / 2**32.
    return (bits >> 32).bitwise_and_(2**32 - 1).mul_(high).bitwise_right_shift_(32)


def stream_pink(keys: Tensor, counter: Tensor, count: int) -> Tensor:
    """Computes (n, count) float32 of pink noise: draw number `counter` (0-d) of the streams `keys` (n,).

    A number is the sum of `OCTAVES` normal numbers divided by the root of their count; number j changes every 2**j
    draws, at another phase for each stream. Source: Voss and Clarke 1978, "1/f noise" in music.
    """
    octave = torch.arange(OCTAVES, device=keys.device)
    keys = keys.unsqueeze(1) + (octave + 1) * MIX_1
    phase = splitmix64_(keys.clone()).bitwise_and_((1 << octave) - 1)
    stream = splitmix64_(keys + ((counter + phase) >> octave) * GOLDEN)
    index = torch.arange(1, (count + 1) // 2 + 1, device=keys.device).mul_(GOLDEN)
    terms = box_muller(splitmix64_(stream.unsqueeze(2) + index))[:, :, :count]
    return terms.sum(1).mul_(OCTAVES**-0.5)
