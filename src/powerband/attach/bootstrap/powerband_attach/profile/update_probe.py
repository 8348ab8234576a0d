"""Update probe: profiles some updates after the window, and repeats some with fewer threads than cores or as many.

With a GPU it records the kernels of some iterations instead (`kernel_probe`).

The launcher asks for it by a file right before it ends the script. The shares of the ledger do not say why an update
takes long: because its operations compute, because launching them dominates, because the loop waits for values from
the device, or because more threads than cores compete. The probe runs in the thread that trains, after an optimiser
step.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from powerband_attach import record
from powerband_attach.profile.clock import clock
from powerband_attach.profile.kernel_probe import KernelProbe, kernel_probe
from powerband_attach.safely import safely

ASKED = "probe"
"""File of the launcher that asks for the probe."""
UPDATES, SHORTEST_NS = 8, 300_000_000
"""Fewest updates and shortest time of each part of the probe."""
MOST_UPDATES = 100
FEW_UPDATES, LONG_NS = 3, 1_000_000_000
"""Updates that are enough after a long time."""
LAUNCH_US = 10.0
"""Microseconds that an operation takes even without arithmetic: dispatch, allocation and the profiler itself."""
FEW_ROWS = 8
"""Rows of a batch up to which a matrix product takes as long as with one row: it reads or writes its weights."""
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
READS = ("aten::_local_scalar_dense",)
"""Operations that convert a tensor to a Python value."""
SPANS = ("backward", "optimizer")
CLOSURE = "powerband closure"
"""Name of the profiled range of an optimiser's closure."""


def _cores() -> int:
    """Returns the cores that all ranks may use. The launcher knows the quota of a container, too."""
    named = os.environ.get("POWERBAND_ATTACH_CORES", "")
    return int(named) if named.isdigit() else len(os.sched_getaffinity(0))


class UpdateProbe:
    """The parts of the probe, one after the other.

    Attributes:
        asked: Whether the launcher has asked for the probe, so that the optimiser's hook calls `after_step`.
    """

    def __init__(self) -> None:
        self.asked = False
        self._part = ""
        self._profiler: Any = None
        self._kernels: KernelProbe | None = None
        self._threads: list[int] = []
        self._began_ns = self._updates = self._spans_ns = 0

    def look(self) -> None:
        """Looks whether the launcher asks. The sampler's thread calls it."""
        if not self.asked and self._part != "ended":
            self.asked = os.path.exists(os.path.join(os.environ.get("POWERBAND_ATTACH_DIR", ""), ASKED))

    def marked_closure(self, args: Any, kwargs: Any) -> Any:
        """Returns the arguments of an optimiser step with a closure that the profile recognises; None without one.

        Lightning runs a whole training step in the closure, which is no work of the optimiser.
        """
        if self._part != "profile":
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            return None

        def marked() -> Any:
            with sys.modules["torch"].autograd.profiler.record_function(CLOSURE):
                return closure()

        return ((args[0], marked, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": marked})

    def after_step(self) -> None:
        """Advances the probe by one step. The training thread calls it after each optimiser step."""
        if not self._advance():  # an error ends the probe too, and the script goes on
            self.asked, self._part = False, "ended"
            record.write("probed")

    @safely
    def _advance(self) -> bool:
        """Starts or ends a part; returns False when there is nothing more to do."""
        torch = sys.modules["torch"]
        updates = clock.updates - self._updates
        passed_ns = perf_counter_ns() - self._began_ns
        enough = updates >= UPDATES and passed_ns >= SHORTEST_NS or updates >= FEW_UPDATES and passed_ns >= LONG_NS
        if not self._part:
            if torch.cuda.is_initialized():  # the time of a kernel is not that of its operation on the host
                self._part, self._kernels = "kernels", kernel_probe()
                return self._kernels is not None or self._try_threads(torch)
            self._part = "profile"
            self._profiler = _profiler()
            if self._profiler is None:
                return self._try_threads(torch)
            self._profiler.__enter__()
            self._mark()
        elif self._part == "kernels":
            if self._kernels is not None and self._kernels.has_enough():
                record.write("kernel_profile", **self._kernels.end())
                return self._try_threads(torch)
        elif self._part == "profile" and (enough or updates >= MOST_UPDATES):
            self._profiler.__exit__(None, None, None)
            record.write("update_profile", updates=updates, **_sums(self._profiler.function_events))
            self._profiler = None
            return self._try_threads(torch)
        elif self._part == "threads" and enough:
            spans_ns = self._span_ns() - self._spans_ns
            record.write("threads_probe", threads=self._threads.pop(0), updates=updates, seconds=spans_ns * 1e-9)
            return self._next_threads(torch)
        return True

    def _try_threads(self, torch: Any) -> bool:
        """Starts to repeat updates if there are more threads than cores of this rank.

        One thread comes first: if other processes have the cores, as many threads as cores wait for each other.
        """
        dist = sys.modules.get("torch.distributed")
        world = dist.get_world_size() if dist is not None and dist.is_available() and dist.is_initialized() else 1
        fair = max(1, _cores() // world)
        if torch.get_num_threads() > fair:
            self._threads = sorted({1, fair})
        self._part = "threads"
        return self._next_threads(torch)

    def _next_threads(self, torch: Any) -> bool:
        if self._threads:
            torch.set_num_threads(self._threads[0])
            self._mark()
        return bool(self._threads)

    def _mark(self) -> None:
        self._began_ns, self._updates, self._spans_ns = perf_counter_ns(), clock.updates, self._span_ns()

    @staticmethod
    def _span_ns() -> int:
        return sum(map(clock.spent_ns, SPANS))


def _profiler() -> Any:
    """Returns the old profiler of torch, because the new one prints to stderr.

    It is None if torch does not have it any more, or if the script itself profiles at present.
    """
    enabled = getattr(sys.modules["torch"]._C._autograd, "_profiler_enabled", None)
    if enabled is None or enabled():
        return None
    try:
        from torch.autograd.profiler_legacy import profile
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return profile(record_shapes=True)


def _sums(events: Sequence[Any]) -> dict[str, Any]:
    """Returns operations, their seconds beyond launching, and conversions of tensors, outside of optimiser steps.

    The steps of an optimiser do not depend on the batch, and it keeps its counters on the host. Nor do matrix products
    with few rows. Operations of one kind count with their median, because another process may take the core during
    some of them.
    """
    times: dict[tuple, list[float]] = {}
    for event in events:
        if "::" not in event.name or event.name.startswith("autograd::") or _in_optimizer(event):
            continue
        spent_us = event.cpu_time_total if event.name in READS else event.self_cpu_time_total
        shapes = tuple(tuple(shape) for shape in event.input_shapes if shape)
        times.setdefault((event.name, shapes), []).append(spent_us)
    operations = reads = 0
    compute_us = read_us = 0.0
    for (name, shapes), each in times.items():
        median_us = sorted(each)[len(each) // 2]
        operations += len(each)
        if name in PRODUCTS and _has_few_rows(shapes):
            continue
        if name in READS:
            reads += len(each)
            read_us += len(each) * median_us
        else:
            compute_us += len(each) * max(0.0, median_us - LAUNCH_US)
    return {"operations": operations, "compute_s": compute_us * 1e-6, "reads": reads, "read_s": read_us * 1e-6}


def _has_few_rows(shapes: Sequence[Sequence[int]]) -> bool:
    """Returns whether a matrix product has few rows of a batch, or sums over few of them, as for a weight's gradient.

    Args:
        shapes: Shapes of its tensors: the factors (..., M, K) and (..., K, N) are the last ones with two dimensions.
    """
    factors = [shape for shape in shapes if len(shape) >= 2]
    return len(factors) >= 2 and min(factors[-2][-2:]) <= FEW_ROWS


def _in_optimizer(event: Any) -> bool:
    while event is not None and event.name != CLOSURE:
        if event.name.startswith("Optimizer."):
            return True
        event = event.cpu_parent
    return False


update_probe = UpdateProbe()
