"""Noise: random numbers as a function of who asks and how often, not of who asked before.

A number is a hash of (seed, purpose, global id, counter, index). An id is a global environment or sample index, so two
ranks never draw the same numbers and the split of the ids over ranks changes none of them. The counter is a tensor on
the device, increased in place: a CUDA graph that draws noise draws new noise at each replay.

Source of the hash: Steele, Lea and Flood 2014, SplitMix64, in wrapping int64 arithmetic.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64


def splitmix64_(x: Tensor) -> Tensor:
    """Finaliser of SplitMix64 on int64 `x`, in place. ``>>`` keeps the sign, hence the masks."""
    x.bitwise_xor_((x >> 30).bitwise_and_(2**34 - 1)).mul_(MIX_1)
    x.bitwise_xor_((x >> 27).bitwise_and_(2**37 - 1)).mul_(MIX_2)
    return x.bitwise_xor_((x >> 31).bitwise_and_(2**33 - 1))


class Noise:
    """One stream of random numbers for each id.

    Attributes:
        counter: 0-d int64 on the device: draws so far.
    """

    def __init__(self, seed: int, purpose: str, ids: Tensor, device: torch.device | str = "cpu"):
        """
        Args:
            seed: Seed of the run, any int.
            purpose: What the numbers are for; streams of different purposes are independent.
            ids: (n,) int64 global ids.
            device: Where numbers are drawn.
        """
        digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
        key = int.from_bytes(digest[:8], "little", signed=True)
        ids = ids.to(device=device, dtype=torch.int64)
        self.keys = splitmix64_((ids + 1).mul_(GOLDEN).add_(key))
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self._parts: dict[int, Noise] = {}

    def row_slice(self, first: int, rows: int) -> Noise:
        """The same stream for `rows` of its rows from `first` on: what the whole would draw for them.

        All parts draw equally often, the last one last: with its draws the whole's counter goes on.
        """
        if first not in self._parts:
            row_slice = self._parts[first] = copy.copy(self)
            row_slice.keys = self.keys[first : first + rows]
            if first + rows < len(self.keys):
                row_slice.counter = self.counter.clone()
        return self._parts[first]

    def bits(self, count: int) -> Tensor:
        """(n, count) int64: 64 random bits each; increases the counter."""
        stream = splitmix64_(self.keys + self.counter * GOLDEN)
        self.counter.add_(1)
        index = torch.arange(1, count + 1, device=self.keys.device).mul_(GOLDEN)
        return splitmix64_(stream.unsqueeze(1) + index)

    def uniform(self, *tail: int) -> Tensor:
        """(n, *tail) float32 in [0, 1), multiples of 2**-24."""
        bits = self.bits(math.prod(tail))
        return (bits >> 40).bitwise_and_(2**24 - 1).to(torch.float32).mul_(2.0**-24).view(-1, *tail)

    def normal(self, *tail: int) -> Tensor:
        """(n, *tail) float32, standard normal. Source: Box and Muller 1958; each hash gives the two of a pair."""
        count = math.prod(tail)
        bits = self.bits((count + 1) // 2)
        radius = ((bits >> 32).bitwise_and_(2**32 - 1) + 1).to(torch.float32).mul_(2.0**-32).log_().mul_(-2).sqrt_()
        angle = bits.bitwise_and_(2**24 - 1).to(torch.float32).mul_(2 * math.pi * 2.0**-24)
        pair = torch.cat([angle.cos().mul_(radius), angle.sin().mul_(radius)], 1)
        return pair[:, :count].reshape(-1, *tail)

    def integers(self, high: int | Tensor, *tail: int) -> Tensor:
        """(n, *tail) int64, uniform on 0 .. high - 1; `high` < 2**31, an int or a 0-d int64 tensor."""
        bits = self.bits(math.prod(tail))
        # The upper half of a 32 by 32 bit product: no division, bias below high / 2**32.
        return (bits >> 32).bitwise_and_(2**32 - 1).mul_(high).bitwise_right_shift_(32).view(-1, *tail)

    def permutation(self) -> Tensor:
        """(n,) int64: a random order of 0 .. n - 1."""
        return self.bits(1).view(-1).argsort()

    def state_dict(self) -> dict[str, Tensor]:
        return {"counter": self.counter}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies the counter in place."""
        self.counter.copy_(state["counter"])
        self._parts.clear()


class NoiseSource:
    """The streams of one rank: hands out one `Noise` for each purpose and number of rows, and saves them all.

    Row i of n on rank r has the global id r n + i.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu", rank: int = 0):
        self.seed = seed
        self.device = torch.device(device)
        self.rank = rank
        self.streams: dict[str, Noise] = {}
        self._part: tuple[int, int] | None = None

    @contextmanager
    def row_slice(self, rows: slice, whole: int) -> Iterator[None]:
        """Inside, who asks for the numbers of a part's rows draws those that the `whole` would draw for them.

        Args:
            rows: Of the part in the whole; every row belongs to one part, and parts draw by turns in their order.
            whole: Rows of all parts together.
        """
        self._part = rows.start, whole
        try:
            yield
        finally:
            self._part = None

    def __call__(self, purpose: str, rows: int) -> Noise:
        """The stream of `purpose` for `rows` rows; the same object each time."""
        if self._part is None:
            return self._stream(purpose, rows)
        first, whole = self._part
        return self._stream(purpose, whole).row_slice(first, rows)

    def _stream(self, purpose: str, rows: int) -> Noise:
        name = f"{purpose}:{rows}"
        if name not in self.streams:
            ids = torch.arange(rows) + self.rank * rows
            self.streams[name] = Noise(self.seed, purpose, ids, self.device)
        return self.streams[name]

    def state_dict(self) -> dict[str, Tensor]:
        return {name: stream.counter for name, stream in self.streams.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores every stream, those too that have not been asked for yet."""
        for name, counter in state.items():
            purpose, rows = name.rsplit(":", 1)
            self._stream(purpose, int(rows)).load_state_dict({"counter": counter})
