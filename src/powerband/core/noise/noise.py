"""Noise: counter-based random streams that do not depend on each other or on the order of their use.

A number is a hash of (seed, purpose, global id, counter, index). The counter is the number of draws so far, and the
index is the position of the number within its draw. An id is a global environment or sample index, so two ranks never
draw the same numbers, and the distribution of the ids over ranks does not change the numbers. The counter is a tensor
on the device and is increased in place, so that each replay of a CUDA graph draws new noise.

`streams` has the functions, and `compiled_streams` the same functions for a CPU, compiled by numba.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from powerband.core.noise.streams import (
    GOLDEN,
    splitmix64_,
    stream_bits,
    stream_integers,
    stream_normal,
    stream_pink,
)

PENDING = 0
"""Number of rows, in a saved state, of a purpose that no stream has used since a resume with other ranks."""


@cache
def compiled_draw(draw: Callable[..., Tensor], on_cpu: bool) -> Callable[..., Tensor]:
    """Returns a compiled version of a function of `streams`: one kernel instead of twenty to two hundred.

    The version for a CPU also increases the counter.
    """
    if on_cpu:
        from powerband.core.noise.compiled_streams import COMPILED  # imports numba, which takes half a second

        return COMPILED[draw.__name__]
    return torch.compile(draw, fullgraph=True, dynamic=True)


class Noise:
    """Source of random numbers for n environments or samples, each of which has an id and a random stream of its own.

    Every draw returns a tensor with n rows, one per id.

    Attributes:
        counter: 0-d int64 on the device, the number of draws so far.
    """

    def __init__(
        self, seed: int, purpose: str, ids: Tensor, device: torch.device | str = "cpu", compiled: bool = False
    ):
        """
        Args:
            seed: Seed of the run, any int.
            purpose: Name of the stream; streams with different names are independent.
            ids: (n,) int64 ids of environments or samples, unique over ranks.
            device: Device of the numbers.
            compiled: Compute the numbers in compiled functions. Bits are the same; normal numbers may differ in the
                last digit.
        """
        digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
        key = int.from_bytes(digest[:8], "little", signed=True)
        ids = ids.to(device=device, dtype=torch.int64)
        self.keys = splitmix64_((ids + 1).mul_(GOLDEN).add_(key))
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self._compiled = compiled
        self._parts: dict[int, Noise] = {}

    def row_slice(self, first: int, rows: int) -> Noise:
        """Returns the part of this source for `rows` of its n ids, from position `first` on.

        The part draws the numbers that the full source would draw for these ids. All parts must draw equally often. The
        part with the last ids must draw last, because its draws advance the counter of the full source.
        """
        if first not in self._parts:
            row_slice = self._parts[first] = copy.copy(self)
            row_slice.keys = self.keys[first : first + rows]
            if first + rows < len(self.keys):
                row_slice.counter = self.counter.clone()
        return self._parts[first]

    def restart_parts(self) -> None:
        """Lets the parts of `row_slice` continue at the counter of this source, which may have drawn meanwhile."""
        for part in self._parts.values():
            if part.counter is not self.counter:
                part.counter.copy_(self.counter)

    def bits(self, count: int) -> Tensor:
        """(n, count) int64 for n ids, each number with 64 random bits; increases the counter."""
        return self._draw(stream_bits, count)

    def _draw(self, draw: Callable[..., Tensor], *arguments: int | Tensor) -> Tensor:
        """Calls a function of `streams`, compiled if wanted, and increases the counter."""
        if self._compiled and self.keys.device.type == "cpu":
            return compiled_draw(draw, True)(self.keys, self.counter, *arguments)
        numbers = (compiled_draw(draw, False) if self._compiled else draw)(self.keys, self.counter, *arguments)
        self.counter.add_(1)
        return numbers

    def uniform(self, *tail: int) -> Tensor:
        """(n, *tail) float32 for n ids, uniform in [0, 1): multiples of 2**-24."""
        bits = self.bits(math.prod(tail))
        return (bits >> 40).bitwise_and_(2**24 - 1).to(torch.float32).mul_(2.0**-24).view(-1, *tail)

    def normal(self, *tail: int) -> Tensor:
        """(n, *tail) float32 for n ids, standard normal."""
        return self._draw(stream_normal, math.prod(tail)).reshape(-1, *tail)

    def pink(self, *tail: int) -> Tensor:
        """(n, *tail) float32 for n ids, standard normal, with a correlation between successive draws.

        The power falls inversely with the frequency, between 1/2 and 1/256 of a draw; see `stream_pink`. Nothing but
        the counter is state.
        """
        return self._draw(stream_pink, math.prod(tail)).reshape(-1, *tail)

    def integers(self, high: int | Tensor, *tail: int) -> Tensor:
        """(n, *tail) int64 for n ids, uniform on 0 .. high - 1; `high` < 2**31, an int or a 0-d int64 tensor."""
        return self._draw(stream_integers, math.prod(tail), high).view(-1, *tail)

    def permutation(self) -> Tensor:
        """(n,) int64 for n ids: a random order of 0 .. n - 1."""
        return self.bits(1).view(-1).argsort()

    def state_dict(self) -> dict[str, Tensor]:
        return {"counter": self.counter}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores the counter from a `state_dict`, in place."""
        self.counter.copy_(state["counter"])
        self._parts.clear()


class NoiseSource:
    """Creates the random streams of one rank, one `Noise` per purpose and number of rows, and saves them together.

    A row is an environment or a sample of a batch. Row i of n on rank r has the global id r * n + i.

    Args:
        seed: Seed of the run.
        device: Device of the numbers.
        rank: Number of this rank.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu", rank: int = 0):
        self.seed = seed
        self.device = torch.device(device)
        self.rank = rank
        self.compiled = False
        self.streams: dict[str, Noise] = {}
        self._counters: dict[str, Tensor] = {}
        self._part: tuple[int, int] | None = None

    def compile(self) -> None:
        """Lets streams that are created from now on compute their numbers in compiled functions."""
        self.compiled = True

    @contextmanager
    def row_slice(self, rows: slice, total_rows: int) -> Iterator[None]:
        """Inside this context, streams for one part of a batch draw the same numbers as those for the full batch.

        Args:
            rows: Positions of the part in the full batch. Every position belongs to one part, and the parts must draw
                in the order of their positions.
            total_rows: Size of the full batch.
        """
        if rows.start == 0:  # streams of other sizes may have drawn since all parts drew
            for name, stream in self.streams.items():
                if name.endswith(f":{total_rows}"):
                    stream.restart_parts()
        self._part = rows.start, total_rows
        try:
            yield
        finally:
            self._part = None

    def __call__(self, purpose: str, rows: int) -> Noise:
        """Returns the random stream for one purpose, the same object each time.

        Args:
            purpose: Name of the stream; streams with different names are independent.
            rows: Number of environments or samples, each with random numbers of its own.
        """
        if self._part is None:
            return self._stream(purpose, rows)
        first, total_rows = self._part
        return self._stream(purpose, total_rows).row_slice(first, rows)

    def _stream(self, purpose: str, rows: int) -> Noise:
        name = f"{purpose}:{rows}"
        if name not in self.streams:
            ids = torch.arange(rows) + self.rank * rows
            stream = Noise(self.seed, purpose, ids, self.device, self.compiled)
            earlier = [each.counter for other, each in self.streams.items() if other.rsplit(":", 1)[0] == purpose]
            if earlier:  # streams of other sizes have ids in common with this one, so all of them count together
                stream.counter = earlier[0]
            elif purpose in self._counters:
                stream.counter.copy_(self._counters.pop(purpose))
            self.streams[name] = stream
        return self.streams[name]

    def state_dict(self) -> dict[str, Tensor]:
        """Counter of each stream, ``purpose:rows``, and of purposes without a stream on this number of ranks.

        Streams of one purpose have the same counter.
        """
        pending = {f"{purpose}:{PENDING}": counter for purpose, counter in self._counters.items()}
        return {name: stream.counter for name, stream in self.streams.items()} | pending

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores every stream, including streams that have not been used yet."""
        self._counters = {}
        largest: dict[str, Tensor] = {}  # the streams of one purpose counted apart in earlier versions
        for name, counter in state.items():
            purpose, rows = name.rsplit(":", 1)
            if int(rows) == PENDING:
                self._counters[purpose] = counter.clone()
            else:
                largest[purpose] = torch.maximum(largest.get(purpose, counter), counter)
                self._stream(purpose, int(rows)).load_state_dict({"counter": largest[purpose]})

    def continue_from(self, state: dict[str, Tensor]) -> None:
        """Continues the streams of a run that had another number of ranks, so that no number is drawn twice.

        The rows of a stream on this rank are then other global ids, with the counter of the saved stream. If a purpose
        had streams of several sizes, all of them continue at the largest counter.

        Args:
            state: Result of `state_dict` of any saved rank; counters are equal on all ranks.
        """
        for name, counter in state.items():
            purpose = name.rsplit(":", 1)[0]
            largest = self._counters.get(purpose)
            self._counters[purpose] = counter.clone() if largest is None else torch.maximum(largest, counter)
        for name, stream in self.streams.items():
            if (purpose := name.rsplit(":", 1)[0]) in self._counters:
                stream.load_state_dict({"counter": self._counters[purpose]})
        used = {name.rsplit(":", 1)[0] for name in self.streams}
        self._counters = {purpose: counter for purpose, counter in self._counters.items() if purpose not in used}
