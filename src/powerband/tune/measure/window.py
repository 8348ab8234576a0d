"""MeasurementWindow: observes a real run, measures some seconds of its steady state, and then ends the run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from powerband.core.machine import memory
from powerband.core.optim.precision import peak
from powerband.core.run.run import Run
from powerband.core.telemetry.phase_clock import PhaseTimes
from powerband.data.types import Tree, tree_map
from powerband.tune.measure import flops, probes
from powerband.tune.measure.cpu_time import CpuMeter
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.kernel_trace import TRACE_S, WALL, KernelTrace
from powerband.tune.measure.ledger import Ledger
from powerband.tune.measure.reductions import AllReduceCounter
from powerband.tune.measure.run_figures import WindowStart, run_figures, worker_statistics

STARTUP_S = 0.7
"""Seconds after the first update that are not measured: caches fill, and libraries initialise and compile."""
DEVICE_ACCOUNTS = ("act", "store", "sample", "returns", "update")
"""Accounts (categories of time) whose work runs on the device of the run."""
SYNC_COUNT_ITERATIONS = 2
"""Iterations before the window in which host-device synchronisations are counted; counting slows every operation."""


class WindowFinished(Exception):
    """Raised to end a run when its measurement window is over."""


@dataclass(frozen=True)
class Measured:
    """Times and figures of the window, and the trace of kernels that follows it on CUDA.

    Attributes:
        phases: Seconds per account.
        facts: Figures for `WindowFacts`.
        trace: Trace of some iterations after the window; None without one.
    """

    phases: PhaseTimes
    facts: dict[str, Any]
    trace: KernelTrace | None


class SyncCount:
    """Counts the host-device synchronisations of the first iterations with updates.

    Args:
        enabled: False counts nothing.

    Attributes:
        per_iteration: Synchronisations per iteration, after `end`.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled, self.per_iteration = enabled, 0.0
        self._counter: probes.SyncCounter | None = None
        self._from = 0

    def begin(self, ticks: int) -> None:
        """Begins to count at iteration `ticks`."""
        if self.enabled:
            self._counter, self._from = probes.SyncCounter(), ticks
            self._counter.__enter__()

    def enough(self, ticks: int) -> bool:
        """Returns whether `SYNC_COUNT_ITERATIONS` iterations have been counted at iteration `ticks`."""
        return self.enabled and ticks - self._from >= SYNC_COUNT_ITERATIONS

    def end(self, ticks: int) -> None:
        """Ends to count at iteration `ticks`; a further call does nothing."""
        if self._counter is not None and self._counter.active:
            self._counter.__exit__(None, None, None)
            self.per_iteration = self._counter.count / max(1, ticks - self._from)


class MeasurementWindow:
    """Run observer that measures where the time of a run goes over a window of iterations, and then ends the run.

    All ranks begin and end the window at the same iteration. Decisions that depend on a clock are agreed by
    all ranks in a collective call.

    Args:
        probe: Time updates with other batch sizes and threads after the window.
        count_syncs: Count host-device synchronisations before the window. Must be false if updates are compiled or
            captured in a graph.

    Attributes:
        ledgers: Wall time per account (category of time) of each rank, in rank order; empty until the window is over.
        facts: Figures of each rank besides its ledger, in rank order; empty until the window is over.
        interrupted: Name of the signal that ended the window early; "" if none did.
    """

    def __init__(self, probe: bool = True, count_syncs: bool = True) -> None:
        self.probe = probe
        self.ledgers: list[Ledger] = []
        self.facts: list[WindowFacts] = []
        self.interrupted = ""
        self._ticks = self._learning = 0
        self._learning_since = 0.0
        self._keeps_batches, self._on_cuda = probe, False
        self._batch: Tree | None = None
        self._syncs = SyncCount(count_syncs)
        self._reductions = AllReduceCounter()
        self._begun: WindowStart | None = None
        self._measured: Measured | None = None

    def on_average(self, flat: Tensor) -> None:
        """Counts one all-reduce of the learner; `flat` is the reduced tensor."""
        self._reductions.add(flat)

    def on_batch(self, batch: Tree) -> None:
        """Stores the batch of the latest update until the window begins, so that updates with it can be timed later."""
        captures = self._on_cuda and torch.cuda.is_current_stream_capturing()
        if self._keeps_batches and self._learning and not captures:
            self._batch = batch

    def on_tick(self, run: Run) -> None:
        """Begins or ends the window if it is time to do so; called at the end of each iteration.

        Raises:
            WindowFinished: The window is over; `ledgers` and `facts` are set.
        """
        self._ticks += 1
        if self._measured is not None:  # the window is over, and its trace is being recorded
            run.running = True
            assert self._measured.trace is not None
            if self._measured.trace.iteration_ends():
                self._finish(run, self._measured)
            return
        if not run.running:
            if self._begun is not None or not run.grad_steps or self._agreed(run, bool(run.received_signal)):
                self._end_window(run)
                return
            # Iterations take longer than the window, which begins now and contains one or two. A window from the
            # first step on would contain the steps before learning_starts, which have no updates.
            run.running = True
            if self._batch is not None or not self.probe:
                self._begin(run)
                return
        if self._begun is not None:
            return
        if run.grad_steps:
            self._learning += 1
            if self._learning == 1:
                self._learning_since = time.perf_counter()
                self._on_cuda = run.device.type == "cuda"
                self._syncs.begin(self._ticks)
            elif self._syncs.enough(self._ticks):
                self._syncs.end(self._ticks)
        if self._learning > 1 and self._learning & (self._learning - 1) == 0 and self._start_up_over(run):
            self._begin(run)

    def close(self) -> None:
        """Removes the counter of synchronisations from this process; also called after a run that failed."""
        self._syncs.end(self._ticks)

    def _start_up_over(self, run: Run) -> bool:
        """Returns whether the start-up is over. The ranks decide together, at iterations 2, 4, 8, ... with updates."""
        return self._agreed(run, time.perf_counter() - self._learning_since >= STARTUP_S)

    def _agreed(self, run: Run, wanted: bool) -> bool:
        """Returns whether `wanted` is true on any rank; a collective call, which every rank must make."""
        return bool(run.ranks.max_(torch.tensor([wanted], dtype=torch.int64, device=run.device)))

    def _begin(self, run: Run) -> None:
        self._end_start_up()
        self._reductions.clear()
        self._begun = WindowStart(run.env_steps, run.grad_steps, self._ticks, worker_statistics(run), CpuMeter())
        memory.reset_peak(run.device)
        run.restart_clocks()

    def _end_start_up(self) -> None:
        """Ends the count of synchronisations, copies the latest batch, and ignores later batches."""
        self._syncs.end(self._ticks)
        self._keeps_batches = False
        if isinstance(self._batch, dict) and "carry" in self._batch:
            self._batch = None  # a batch of sequences, whose rows are not independent
        if self._batch is not None:
            self._batch = tree_map(lambda leaf: leaf.clone(), self._batch)

    def _end_window(self, run: Run) -> None:
        """Reads the times and figures of the window; on CUDA a trace of a few more iterations follows it."""
        self.interrupted = run.received_signal
        begun, steady_state = self._begun, self._begun is not None
        if begun is None:  # the run ended during start-up: the window is the full run
            self._end_start_up()
            begun = WindowStart(0, 0, 0, None, CpuMeter())
        phases = run.clock.read_total()
        host = {"host": begun.meter.read(phases.wall_s)} if steady_state else {}
        facts = (
            run_figures(run, begun, self._ticks)
            | host
            | {
                "syncs_per_iteration": self._syncs.per_iteration,
                "steady_state": steady_state,
                **self._reductions.figures(1 / max(self._ticks - begun.ticks, 1)),
            }
        )
        iterations = math.ceil(TRACE_S * facts["iterations"] / phases.wall_s)
        wanted = iterations if run.device.type == "cuda" and steady_state and not self.interrupted else 0
        traced = int(run.ranks.max_(torch.tensor([wanted], device=run.device)))
        measured = Measured(phases, facts, KernelTrace(run.clock, traced) if traced else None)
        if measured.trace is None:
            self._finish(run, measured)
        self._measured = measured
        run.running = True

    def _finish(self, run: Run, measured: Measured) -> None:
        """Times single updates, gathers the figures of all ranks and ends the run."""
        shares = None
        facts = dict(measured.facts)
        if measured.trace is not None:
            shares = measured.trace.shares(measured.phases, facts["iterations"])
        if shares is not None:
            facts["device_busy"] = shares[WALL]
            shares = _of_device_accounts(run, shares)
        if self.probe and self._batch is not None:
            facts |= probes.measure_update(run.registered("learner").update, self._batch, run.device, run.ranks)
            per_update = self._reductions.count_call(lambda: run.registered("learner").update(self._batch))
            counted = per_update.figures(facts["grad_steps"] / max(facts["iterations"], 1))
            facts |= max(facts, counted, key=lambda each: each["reductions"])  # a graph replay does not call `average`
            if self._syncs.enabled:
                facts["update_flops"] = flops.count_flops(lambda: run.registered("learner").update(self._batch))
                facts["peak_flops_s"] = peak(run.device, run.precision.name)
        ledger = Ledger.from_phases(measured.phases, shares)
        all_ranks = run.ranks.gather({"ledger": ledger.to_dict(), "facts": WindowFacts(**facts).to_dict()})
        self.ledgers = [Ledger.from_dict(rank["ledger"]) for rank in all_ranks]
        self.facts = [WindowFacts.from_dict(rank["facts"]) for rank in all_ranks]
        raise WindowFinished


def _of_device_accounts(run: Run, shares: dict[str, float]) -> dict[str, float]:
    """Returns the shares, account -> 0 to 1, of the accounts whose work runs on the device."""
    env = run.registered("env")
    on_device = env is not None and not env.worker_statistics()  # simulators without workers run on the device
    accounts = [*DEVICE_ACCOUNTS, "env"] if on_device else DEVICE_ACCOUNTS
    return {name: share for name, share in shares.items() if name in accounts}
