"""Loaders: times the batch loaders of torch, and counts their batches and iterators per place of construction."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from powerband_attach import record
from powerband_attach.imports import when_imported
from powerband_attach.profile import call_sites
from powerband_attach.profile.clock import Account, clock
from powerband_attach.profile.timed import like
from powerband_attach.safely import safely

SETTINGS = ("_num_workers", "_pin_memory", "_prefetch_factor", "_persistent_workers", "_drop_last")
_described: set[tuple] = set()
_waits: dict[str, tuple[Account, Account]] = {}
"""Place of construction -> accounts of its batches and of the creation of its iterators, parts of ``data_wait``."""
_of_iterators: Any = WeakKeyDictionary()
"""Iterator -> account of the batches of the place at which its loader was created."""


def watch() -> None:
    """Times the loaders when torch is imported."""
    when_imported("torch.utils.data.dataloader", _time_loader)


def read() -> dict[str, list[int]]:
    """Returns per place of construction: batches, nanoseconds of waiting for them, iterators, and nanoseconds of their
    creation."""
    waits = list(_waits.items())
    times = {place: [batches.spans, batches.ns, made.spans, made.ns] for place, (batches, made) in waits}
    return {place: each for place, each in times.items() if any(each)}


def forget() -> None:
    """Discards all counts, in a forked process."""
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
        clock.enter(_of_iterators.get(self) or _add_iterator(self, ""))
        try:
            return fn(self)
        finally:
            clock.leave()

    return like(fn, call)


def _timed_iterator(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``__iter__`` of a batch loader, which starts the workers."""

    def call(self: Any) -> Any:
        if get_ident() != clock.thread:
            return fn(self)
        place = call_sites.place_of(self)
        clock.enter(_waits_of(place)[1])
        try:
            iterator = fn(self)
        finally:
            clock.leave()
        _add_iterator(iterator, place)
        return iterator

    return like(fn, call)


def _waits_of(place: str) -> tuple[Account, Account]:
    if place not in _waits:
        _waits[place] = clock.account("data_wait"), clock.account("data_wait")
    return _waits[place]


def _add_iterator(iterator: Any, place: str) -> Account:
    batches = _waits_of(place)[0]
    safely(_of_iterators.__setitem__)(iterator, batches)
    safely(_describe)(iterator, place)
    return batches


def _describe(iterator: Any, place: str) -> None:
    """Records the settings of each kind of loader once."""
    settings = (place, *(getattr(iterator, name, None) for name in SETTINGS))
    if settings not in _described:
        _described.add(settings)
        fields = {name[1:]: value for name, value in zip(SETTINGS, settings[1:])}  # noqa: B905 (new in Python 3.10)
        batch = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        kind = getattr(iterator, "_dataset_kind", 0)
        record.write("loader", where=place, batch_size=batch, iterable=bool(kind), **fields)
