"""Loaders: times the batch loaders of torch, and counts their batches and iterators per place of construction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from powerband_attach import record
from powerband_attach.imports import when_imported
from powerband_attach.profile import call_sites
from powerband_attach.profile.clock import clock
from powerband_attach.profile.timed import timed
from powerband_attach.safely import safely

SETTINGS = ("_num_workers", "_pin_memory", "_prefetch_factor", "_persistent_workers", "_drop_last")
_described: set[tuple] = set()
_times: dict[str, list[int]] = {}
"""Place of construction -> batches, nanoseconds of waiting for them, iterators, nanoseconds of their creation."""
_places: Any = WeakKeyDictionary()
"""Iterator -> place of construction of its loader."""


def watch() -> None:
    """Times the loaders when torch is imported."""
    when_imported("torch.utils.data.dataloader", _time_loader)


def read() -> dict[str, list[int]]:
    """Returns the counts and times per place of construction."""
    return {place: list(times) for place, times in list(_times.items())}


def forget() -> None:
    """Discards all counts, in a forked process."""
    _times.clear()
    _described.clear()


def _time_loader(module: Any) -> None:
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = _timed_batch(iterator.__next__)
    module.DataLoader.__iter__ = _timed_iterator(module.DataLoader.__iter__)


def _timed_batch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``__next__`` of a batch loader, which records the settings of each kind of loader once."""
    waits = timed(fn, "data_wait")

    @functools.wraps(fn)
    def call(self: Any) -> Any:
        safely(_describe)(self)
        before = clock.ns.get("data_wait", 0)
        try:
            return waits(self)
        finally:
            _add(_places.get(self, ""), 0, before)

    return call


def _timed_iterator(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``__iter__`` of a batch loader, which starts the workers."""
    waits = timed(fn, "data_wait")

    @functools.wraps(fn)
    def call(self: Any) -> Any:
        before = clock.ns.get("data_wait", 0)
        iterator = waits(self)
        place = call_sites.place_of(self)
        safely(_places.__setitem__)(iterator, place)
        _add(place, 2, before)
        return iterator

    return call


def _add(place: str, column: int, before: int) -> None:
    """Counts a span of this thread in two columns of a place. `before` is the time of all such spans before it."""
    if get_ident() == clock.thread:
        times = _times.setdefault(place, [0, 0, 0, 0])
        times[column] += 1
        times[column + 1] += max(0, clock.ns.get("data_wait", 0) - before)


def _describe(iterator: Any) -> None:
    place = _places.get(iterator, "")
    settings = (place, *(getattr(iterator, name, None) for name in SETTINGS))
    if settings not in _described:
        _described.add(settings)
        fields = {name[1:]: value for name, value in zip(SETTINGS, settings[1:])}  # noqa: B905 (new in Python 3.10)
        batch = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        kind = getattr(iterator, "_dataset_kind", 0)
        record.write("loader", where=place, batch_size=batch, iterable=bool(kind), **fields)
