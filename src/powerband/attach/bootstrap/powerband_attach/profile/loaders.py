"""Loaders: times the batch loaders of torch, and counts their batches and iterators per place of construction."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from powerband_attach import record
from powerband_attach.imports import when_imported
from powerband_attach.profile import call_sites
from powerband_attach.profile.clock import clock
from powerband_attach.profile.timed import like
from powerband_attach.safely import safely

SETTINGS = ("_num_workers", "_pin_memory", "_prefetch_factor", "_persistent_workers", "_drop_last")
_described: set[tuple] = set()
_times: dict[str, list[int]] = {}
"""Place of construction -> batches, nanoseconds of waiting for them, iterators, nanoseconds of their creation."""
_of_iterators: Any = WeakKeyDictionary()
"""Iterator -> times of the place at which its loader was created."""


def watch() -> None:
    """Times the loaders when torch is imported."""
    when_imported("torch.utils.data.dataloader", _time_loader)


def read() -> dict[str, list[int]]:
    """Returns the counts and times per place of construction."""
    return {place: list(times) for place, times in list(_times.items())}


def forget() -> None:
    """Discards all counts, in a forked process."""
    _times.clear()
    _of_iterators.clear()
    _described.clear()


def _time_loader(module: Any) -> None:
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = _timed_batch(iterator.__next__)
    module.DataLoader.__iter__ = _timed_iterator(module.DataLoader.__iter__)


def _timed_batch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``__next__`` of a batch loader."""

    def call(self: Any) -> Any:
        if get_ident() != clock.thread:
            return fn(self)
        times = _of_iterators.get(self) or _add_iterator(self, "")
        with _Waiting(times, 0):
            return fn(self)

    return like(fn, call)


def _timed_iterator(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``__iter__`` of a batch loader, which starts the workers."""

    def call(self: Any) -> Any:
        if get_ident() != clock.thread:
            return fn(self)
        place = call_sites.place_of(self)
        with _Waiting(_times_of(place), 2):
            iterator = fn(self)
        _add_iterator(iterator, place)
        return iterator

    return like(fn, call)


class _Waiting:
    """Span of the account ``data_wait`` that also counts in two columns of the times of a place."""

    __slots__ = ("times", "column", "before")

    def __init__(self, times: list[int], column: int) -> None:
        self.times, self.column = times, column

    def __enter__(self) -> None:
        self.before = clock.spent_ns("data_wait")
        clock.enter("data_wait")

    def __exit__(self, *error: Any) -> None:
        clock.leave()
        self.times[self.column] += 1
        self.times[self.column + 1] += max(0, clock.spent_ns("data_wait") - self.before)


def _times_of(place: str) -> list[int]:
    return _times.setdefault(place, [0, 0, 0, 0])


def _add_iterator(iterator: Any, place: str) -> list[int]:
    times = _times_of(place)
    safely(_of_iterators.__setitem__)(iterator, times)
    safely(_describe)(iterator, place)
    return times


def _describe(iterator: Any, place: str) -> None:
    """Records the settings of each kind of loader once."""
    settings = (place, *(getattr(iterator, name, None) for name in SETTINGS))
    if settings not in _described:
        _described.add(settings)
        fields = {name[1:]: value for name, value in zip(SETTINGS, settings[1:])}  # noqa: B905 (new in Python 3.10)
        batch = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        kind = getattr(iterator, "_dataset_kind", 0)
        record.write("loader", where=place, batch_size=batch, iterable=bool(kind), **fields)
