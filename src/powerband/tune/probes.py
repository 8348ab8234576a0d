"""Probes: what an update costs by itself, at other batches and threads, and how often it asks tensors for values."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from powerband.core.device import cores
from powerband.core.distributed import Ranks
from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger

PROBE_S = 0.6
"""Seconds that the updates of one probe take, all sizes together."""
PROBED_SIZES = (1, 4)
"""Batches that are probed, in multiples of the run's own."""


def of_loop(update: Callable[[Any], object], batch: Any, ledger: Ledger) -> Facts:
    """Facts about the update of a loop that is not this package's.

    Args:
        update: One update; it is handed batches of one and of four times the size, some dozen times.
        batch: A tensor, or nested dicts, lists and tuples of tensors, rows first.
        ledger: Of the loop's clock; its account of updates says how many there were.
    """
    iterations = max((figures.count for figures in ledger.spans.values()), default=0)
    updates = ledger.spans["update"].count if "update" in ledger.spans else 0
    device = next(leaves_of(batch)).device
    with CountedQuestions() as asked:
        update(batch)
    return Facts(
        iterations=iterations,
        grad_steps=updates,
        cores=cores(),
        threads=torch.get_num_threads(),
        syncs_per_iteration=asked.count * updates / max(iterations, 1),
        sync_s=question_s(device),
        **of_update(update, batch, device, Ranks()),
    )


def of_update(update: Callable[[Any], object], batch: Any, device: torch.device, ranks: Ranks) -> dict[str, Any]:
    """Times updates of several batches, and of other thread counts where this machine has too few cores.

    Returns:
        ``batch_rows``, ``update_s`` and ``threads_s`` of `Facts`.
    """
    rows = len(next(leaves_of(batch)))
    batches = {rows * factor: rows_of(batch, rows * factor) for factor in PROBED_SIZES}
    update_s = timed({size: lambda b=other: update(b) for size, other in batches.items()}, device, ranks, PROBE_S)
    own, threads_s = torch.get_num_threads(), {}
    fair = max(1, cores() // ranks.world_size)
    if device.type == "cpu" and own > fair:

        def with_threads(count: int) -> None:
            torch.set_num_threads(count)
            update(batch)

        threads_s = timed({n: lambda n=n: with_threads(n) for n in (own, fair)}, device, ranks, PROBE_S)
        torch.set_num_threads(own)
    return {"batch_rows": rows, "update_s": update_s, "threads_s": threads_s}


QUESTIONS = ("item", "__bool__", "__float__", "__int__", "__index__")
"""Methods by which Python asks a tensor for its value."""


class CountedQuestions:
    """Counts how often Python asks a tensor for its value: on CUDA each such question waits for the device.

    The methods are counted where they are called, not torch's operators below them: a dispatch mode would see more,
    and imports torch's compiler, which takes longer than many a window.
    """

    def __init__(self) -> None:
        self.count, self.active = 0, False

    def __enter__(self) -> CountedQuestions:
        self.active = True
        self._before = {name: Tensor.__dict__[name] for name in QUESTIONS if name in Tensor.__dict__}
        for name in QUESTIONS:
            setattr(Tensor, name, self._counting(getattr(Tensor, name)))
        return self

    def __exit__(self, *error: Any) -> None:
        self.active = False
        for name in QUESTIONS:
            if name in self._before:
                setattr(Tensor, name, self._before[name])
            else:  # it is the base class's
                delattr(Tensor, name)

    def _counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: Tensor) -> Any:
            self.count += 1
            return method(tensor)

        return counted


def kernel_active(update: Callable[[], object], updates: int = 20) -> float | None:
    """Share of the time of some updates in which the device ran a kernel; None where the driver does not let us see.

    Not the driver's "utilisation", which counts a device as busy while one kernel waits for another rank.
    """
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(updates):
                update()
            torch.cuda.synchronize()
            wall_s = time.perf_counter() - start
        kernels_s = sum(event.self_device_time_total for event in seen.key_averages()) * 1e-6
    except RuntimeError:
        return None
    return min(1.0, kernels_s / wall_s) if kernels_s else None


def question_s(device: torch.device) -> float:
    """Seconds of asking a tensor for its value while the device is idle; median of 200."""
    scalar, times = torch.zeros((), device=device), []
    for _ in range(200):
        start = time.perf_counter()
        scalar.item()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def leaves_of(batch: Any) -> Iterator[Tensor]:
    """Tensors in nested dicts, lists and tuples."""
    if isinstance(batch, Tensor):
        yield batch
    else:
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from leaves_of(part)


def rows_of(batch: Any, rows: int) -> Any:
    """The rows of `batch` repeated in turn to make `rows` of them."""
    if isinstance(batch, Tensor):
        return batch[torch.arange(rows, device=batch.device) % len(batch)]
    if isinstance(batch, dict):
        return {name: rows_of(part, rows) for name, part in batch.items()}
    parts = [rows_of(part, rows) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def timed(
    calls: dict[int, Any], device: torch.device, ranks: Ranks, budget_s: float, least: int = 5
) -> dict[int, float]:
    """Lower quartile of the seconds of each call, taken in turns; every rank makes the same number of calls.

    A shared machine makes some calls slow and none fast: the quicker ones are nearer to what a call costs.
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
