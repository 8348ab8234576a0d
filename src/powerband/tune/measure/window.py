"""MeasurementWindow: observes a real run, measures some seconds of its steady state, and then ends the run."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from powerband.core.machine import memory
from powerband.core.machine.device import cores
from powerband.core.optim.precision import peak
from powerband.core.run.run import Run
from powerband.data.types import Tree, tree_leaves, tree_map
from powerband.tune.measure import flops, probes
from powerband.tune.measure.cpu_time import CpuMeter
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.kernel_trace import TRACE_S, WALL, KernelTrace
from powerband.tune.measure.ledger import Ledger
from powerband.tune.measure.reductions import AllReduceCounter

STARTUP_S = 0.7
"""Seconds after the first update that are not measured: caches fill, and libraries initialise and compile."""
DEVICE_ACCOUNTS = ("act", "store", "sample", "returns", "update")
"""Accounts (categories of time) whose work runs on the device of the run."""
SYNC_COUNT_ITERATIONS = 2
"""Iterations before the window in which host-device synchronisations are counted; counting slows every operation."""


class WindowFinished(Exception):
    """Raised to end a run when its measurement window is over."""


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
        self.probe, self.count_syncs = probe, count_syncs
        self.ledgers: list[Ledger] = []
        self.facts: list[WindowFacts] = []
        self.interrupted = ""
        self._ticks = self._learning = 0
        self._measuring = self._released = self._on_cuda = False
        self._batch: Tree | None = None
        self._counter: probes.SyncCounter | None = None
        self._syncs = 0.0
        self._reductions = AllReduceCounter()
        self._trace: KernelTrace | None = None

    def on_average(self, flat: Tensor) -> None:
        """Counts one all-reduce of the learner; `flat` is the reduced tensor."""
        self._reductions.add(flat)

    def on_batch(self, batch: Tree) -> None:
        """Stores the batch of the latest update until the window begins, so that updates with it can be timed later."""
        captures = self._on_cuda and torch.cuda.is_current_stream_capturing()
        if self.probe and self._learning and not self._released and not captures:
            self._batch = batch

    def on_tick(self, run: Run) -> None:
        """Begins or ends the window if it is time to do so; called at the end of each iteration.

        Raises:
            WindowFinished: The window is over; `ledgers` and `facts` are set.
        """
        self._ticks += 1
        if self._trace is not None:
            run.running = True
            if self._trace.iteration_ends():
                self._finish(run)
            return
        if not run.running:
            if self._measuring or not run.grad_steps or self._agreed(run, bool(run.received_signal)):
                self._end_window(run)
                return
            # Iterations take longer than the window, which begins now and contains one or two. A window from the
            # first step on would contain the steps before learning_starts, which have no updates.
            run.running = True
            if self._batch is not None or not self.probe:
                self._begin(run)
                return
        if self._measuring:
            return
        if run.grad_steps:
            self._learning += 1
            if self._learning == 1:
                self._learning_since = time.perf_counter()
                self._on_cuda = run.device.type == "cuda"
                if self.count_syncs:
                    self._counter, self._counted_from = probes.SyncCounter(), self._ticks
                    self._counter.__enter__()
            elif self.count_syncs and self._ticks - self._counted_from >= SYNC_COUNT_ITERATIONS:
                self._stop_counting()
        if self._learning > 1 and self._learning & (self._learning - 1) == 0 and self._start_up_over(run):
            self._begin(run)

    def close(self) -> None:
        """Removes the counter of synchronisations from this process; also called after a run that failed."""
        self._stop_counting()

    def _start_up_over(self, run: Run) -> bool:
        """Returns whether the start-up is over. The ranks decide together, at iterations 2, 4, 8, ... with updates."""
        return self._agreed(run, time.perf_counter() - self._learning_since >= STARTUP_S)

    def _agreed(self, run: Run, wanted: bool) -> bool:
        """Returns whether `wanted` is true on any rank; a collective call, which every rank must make."""
        return bool(run.ranks.max_(torch.tensor([wanted], dtype=torch.int64, device=run.device)))

    def _begin(self, run: Run) -> None:
        self._stop_counting()
        self._copy_batch()
        self._measuring = True
        self._start = (run.env_steps, run.grad_steps, self._ticks)
        self._reductions.clear()
        self._env_facts = _env_facts(run)
        self._meter = CpuMeter()
        memory.reset_peak(run.device)
        run.restart_clocks()

    def _end_window(self, run: Run) -> None:
        """Reads the times and figures of the window; on CUDA a trace of a few more iterations follows it."""
        self.interrupted = run.received_signal
        steady_state = self._measuring
        if not steady_state:  # the run ended during start-up: the window is the full run
            self._stop_counting()
            self._copy_batch()
            self._start, self._env_facts, self._meter = (0, 0, 0), None, CpuMeter()
        phases = self._phases = run.clock.read_total()
        host = self._meter.read(phases.wall_s) if steady_state else None
        facts = self._window_facts = self._facts(run, steady_state)
        facts |= {} if host is None else {"host": host}
        iterations = math.ceil(TRACE_S * facts["iterations"] / phases.wall_s)
        wanted = iterations if run.device.type == "cuda" and steady_state and not self.interrupted else 0
        traced = int(run.ranks.max_(torch.tensor([wanted], device=run.device)))
        if traced:
            self._trace = KernelTrace(run.clock, traced)
            run.running = True
        else:
            self._finish(run)

    def _device_shares(self, run: Run) -> dict[str, float] | None:
        """Ends the trace, sets the fact ``device_busy`` and returns the shares for `Ledger.from_phases`, if any."""
        facts = self._window_facts
        shares = None if self._trace is None else self._trace.shares(self._phases, facts["iterations"])
        if shares is None:
            return None
        facts["device_busy"] = shares[WALL]
        env = run.registered("env")
        on_device = env is not None and not env.worker_statistics()  # simulators without workers run on the device
        accounts = [*DEVICE_ACCOUNTS, "env"] if on_device else DEVICE_ACCOUNTS
        return {name: share for name, share in shares.items() if name in accounts}

    def _finish(self, run: Run) -> None:
        """Times single updates, gathers the figures of all ranks and ends the run."""
        shares, facts = self._device_shares(run), self._window_facts
        if self.probe and self._batch is not None:
            facts |= probes.measure_update(run.registered("learner").update, self._batch, run.device, run.ranks)
            per_update = self._reductions.count_call(lambda: run.registered("learner").update(self._batch))
            counted = per_update.figures(facts["grad_steps"] / max(facts["iterations"], 1))
            facts |= max(facts, counted, key=lambda each: each["reductions"])  # a graph replay does not call `average`
            if self.count_syncs:
                facts["update_flops"] = flops.count_flops(lambda: run.registered("learner").update(self._batch))
                facts["peak_flops_s"] = peak(run.device, run.precision.name)
        report = {"ledger": Ledger.from_phases(self._phases, shares).to_dict(), "facts": WindowFacts(**facts).to_dict()}
        all_ranks = run.ranks.gather(report)
        self.ledgers = [Ledger.from_dict(rank["ledger"]) for rank in all_ranks]
        self.facts = [WindowFacts.from_dict(rank["facts"]) for rank in all_ranks]
        raise WindowFinished

    def _facts(self, run: Run, steady_state: bool) -> dict[str, Any]:
        env, ticks = run.registered("env"), self._ticks - self._start[2]
        facts: dict[str, Any] = {
            "iterations": ticks,
            "env_steps": run.env_steps - self._start[0],
            "grad_steps": run.grad_steps - self._start[1],
            "world_size": run.ranks.world_size,
            "cores": cores(),
            "threads": torch.get_num_threads(),
            "precision": run.settings.precision,
            "syncs_per_iteration": self._syncs,
            "sync_s": probes.measure_sync_s(run.device),
            "steady_state": steady_state,
            "memory_bytes": memory.peak(run.device),
            **self._reductions.figures(1 / max(ticks, 1)),
        }
        if env is not None:
            leaves = tree_leaves(env.spec.obs)
            facts |= {
                "num_envs": env.num_envs,
                "overlappable": env.spec.overlappable,
                "can_overlap": env.spec.overlappable and run.registered("replay") is not None,
                "overlap": run.settings.overlap and env.spec.overlappable,
                "image_obs": any(leaf.dtype == torch.uint8 and len(leaf.shape) >= 3 for leaf in leaves),
            }
            now, then = _env_facts(run), self._env_facts
            if now is not None and then is not None:
                steps = facts["env_steps"] / max(1, run.ranks.world_size * env.num_envs)
                spent = [b - a for a, b in zip(then["spent_s"], now["spent_s"], strict=True)]
                facts |= {
                    "env_step_s": [seconds / max(steps, 1) for seconds in spent],
                    "env_worst_s": now["worst_s"],
                    "worker_rows": now["worker_rows"],
                    "env_cpu_s": sum(now["cpu_s"]) - sum(then["cpu_s"]),
                    "renderer": now["renderer"] or "",
                }
        return facts

    def _copy_batch(self) -> None:
        """Copies the latest batch and ignores later batches."""
        self._released = True
        if isinstance(self._batch, dict) and "carry" in self._batch:
            self._batch = None  # a batch of sequences, whose rows are not independent
        if self._batch is not None:
            self._batch = tree_map(lambda leaf: leaf.clone(), self._batch)

    def _stop_counting(self) -> None:
        if self._counter is not None and self._counter.active:
            self._counter.__exit__(None, None, None)
            self._syncs = self._counter.count / max(1, self._ticks - self._counted_from)


def _env_facts(run: Run) -> dict[str, Any] | None:
    env = run.registered("env")
    return None if env is None else env.worker_statistics() or None
