"""Probes: times single updates with other batch sizes and threads, and counts host-device synchronisations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from powerband.core.machine.device import cores
from powerband.core.ranks.ranks import Ranks
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger

PROBE_S = 0.6
"""Seconds per probe, all sizes together."""
PROBED_SIZES = (1, 4)
"""Batch sizes that are timed, in multiples of the size in the run."""


def measure_loop_update(update: Callable[[Any], object], batch: Any, ledger: Ledger) -> WindowFacts:
    """Times the update of a training loop outside of this package, and counts its host-device synchronisations.

    Args:
        update: Makes one update with a batch. It is called some dozen times, with `batch` and with `batch` repeated
            four times.
        batch: Tensor, or nested dicts, lists and tuples of tensors, whose first axis is the batch.
        ledger: Time of the loop per account (category of time); the number of updates is read from its
            account ``update``.

    Returns:
        Figures of the loop and of its timed updates, as input of the diagnosis.
    """
    iterations = max((figures.count for figures in ledger.spans.values()), default=0)
    updates = ledger.spans["update"].count if "update" in ledger.spans else 0
    device = next(tensor_leaves(batch)).device
    with SyncCounter() as counter:
        update(batch)
    return WindowFacts(
        iterations=iterations,
        grad_steps=updates,
        cores=cores(),
        threads=torch.get_num_threads(),
        syncs_per_iteration=counter.count * updates / max(iterations, 1),
        sync_s=measure_sync_s(device),
        **measure_update(update, batch, device, Ranks()),
    )


def measure_update(update: Callable[[Any], object], batch: Any, device: torch.device, ranks: Ranks) -> dict[str, Any]:
    """Times updates with several batch sizes, and with fewer threads if the machine has fewer cores than threads.

    Args:
        update: Makes one update with a batch.
        batch: Batch of the run.
        device: Device of the batch.
        ranks: Process group of the run; all ranks make the same calls.

    Returns:
        The fields ``batch_rows``, ``update_s`` and ``threads_s`` of `WindowFacts`.
    """
    rows = len(next(tensor_leaves(batch)))
    batches = {rows * factor: repeat_rows(batch, rows * factor) for factor in PROBED_SIZES}
    update_s = time_calls({size: lambda b=other: update(b) for size, other in batches.items()}, device, ranks, PROBE_S)
    now, threads_s = torch.get_num_threads(), {}
    fair = max(1, cores() // ranks.world_size)
    if device.type == "cpu" and now > fair:

        def with_threads(count: int) -> None:
            torch.set_num_threads(count)
            update(batch)

        threads_s = time_calls({n: lambda n=n: with_threads(n) for n in (now, fair)}, device, ranks, PROBE_S)
        torch.set_num_threads(now)
    return {"batch_rows": rows, "update_s": update_s, "threads_s": threads_s}


SYNC_METHODS = ("item", "__bool__", "__float__", "__int__", "__index__")
"""Methods that convert a tensor to a Python value."""


class SyncCounter:
    """Counts conversions of tensors to Python values; on CUDA each one waits for the device. A context manager.

    While active, it replaces the methods of `Tensor` that make such conversions, such as ``item``. A dispatch mode of
    PyTorch would find more synchronisations, but importing PyTorch's compiler takes longer than many measurements.
    """

    def __init__(self) -> None:
        self.count, self.active = 0, False

    def __enter__(self) -> SyncCounter:
        self.active = True
        self._before = {name: Tensor.__dict__[name] for name in SYNC_METHODS if name in Tensor.__dict__}
        for name in SYNC_METHODS:
            setattr(Tensor, name, self._counting(getattr(Tensor, name)))
        return self

    def __exit__(self, *error: Any) -> None:
        self.active = False
        for name in SYNC_METHODS:
            if name in self._before:
                setattr(Tensor, name, self._before[name])
            else:  # the base class defines it
                delattr(Tensor, name)

    def _counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: Tensor) -> Any:
            self.count += 1
            return method(tensor)

        return counted


def measure_sync_s(device: torch.device) -> float:
    """Returns the seconds per host-device synchronisation on an idle device, median of 200.

    A synchronisation here is the conversion of a tensor to a Python value with ``item``.
    """
    scalar, times = torch.zeros((), device=device), []
    for _ in range(200):
        start = time.perf_counter()
        scalar.item()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def tensor_leaves(batch: Any) -> Iterator[Tensor]:
    """Yields the tensors in nested dicts, lists and tuples, or the tensor if `batch` is one."""
    if isinstance(batch, Tensor):
        yield batch
    else:
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from tensor_leaves(part)


def repeat_rows(batch: Any, rows: int) -> Any:
    """Repeats the rows of a batch in their order until there are `rows` rows.

    The batch is a tensor, or nested dicts, lists and tuples of tensors, whose first axis is the batch.
    """
    if isinstance(batch, Tensor):
        return batch[torch.arange(rows, device=batch.device) % len(batch)]
    if isinstance(batch, dict):
        return {name: repeat_rows(part, rows) for name, part in batch.items()}
    parts = [repeat_rows(part, rows) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def time_calls(
    calls: dict[int, Any], device: torch.device, ranks: Ranks, budget_s: float, least: int = 5
) -> dict[int, float]:
    """Times several calls in alternation; returns key -> lower quartile of the seconds of that call.

    The load of a shared machine makes some calls slow and none fast, so the quartile is closer to the cost of a call
    than the median.

    Args:
        calls: Key, such as a number of rows or of threads -> function without arguments.
        device: Device to synchronise with after each call.
        ranks: Process group of the run; every rank makes the same number of calls.
        budget_s: Seconds for all rounds together. A round makes each call once.
        least: Smallest number of rounds.
    """

    def once(call: Any) -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for call in calls.values():
        once(call)
    round_s = sum(once(call) for call in calls.values())
    rounds = int(ranks.max_(torch.tensor([min(50, max(least, int(budget_s / round_s)))], device=device)))
    times: dict[int, list[float]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            times[key].append(once(call))
    return {key: sorted(values)[len(values) // 4] for key, values in times.items()}
