"""Window: looks on while a real run works, lets it settle, measures for some seconds, then ends the run."""

from __future__ import annotations

import time
from typing import Any

import torch

from powerband.core import memory
from powerband.core.device import cores
from powerband.core.precision import peak
from powerband.core.run import Run
from powerband.data.types import Tree, tree_leaves, tree_map
from powerband.tune import flops, probes
from powerband.tune.facts import Facts
from powerband.tune.host import HostMeter
from powerband.tune.ledger import Ledger
from powerband.tune.reductions import Reductions

SETTLE_S = 0.7
"""Seconds from the first update on that are not measured: caches, lazy initialisation, the first compile."""
COUNTED_ITERATIONS = 2
"""Iterations in which questions to tensors are counted, before the window: counting slows every operation."""


class Measured(Exception):
    """Unwinds a run whose window is over: what it has learnt is thrown away with its folder."""


class Window:
    """The observer of one run. All ranks decide alike: what depends on a clock is agreed at iterations they count.

    Args:
        probe: Time updates of other batches and threads after the window.
        count: Count questions to tensors before it; not where updates are compiled or captured.

    Attributes:
        ledgers: One a rank; filled when the window is over.
        facts: One a rank.
        interrupted: Name of the signal that ended the window early, "" for none.
    """

    def __init__(self, probe: bool = True, count: bool = True) -> None:
        self.probe, self.count = probe, count
        self.ledgers: list[Ledger] = []
        self.facts: list[Facts] = []
        self.interrupted = ""
        self._ticks = self._learning = 0
        self._measuring = False
        self._batch: Tree | None = None
        self._counter: probes.CountedQuestions | None = None
        self._syncs = 0.0
        self._reductions = Reductions()

    def attend(self, run: Run) -> None:
        """Looks on at `run` from its first iteration, and notes the all-reduces that its learner asks for."""
        run.observe = self
        run.ranks.average_ = self._reductions.noting(run.ranks.average_)

    def __call__(self, run: Run) -> None:
        """Called at the end of each of the loop's iterations."""
        self._ticks += 1
        if not run.running:
            if self._measuring or not run.grad_steps or self._agreed(run, bool(run.signalled)):
                self._finish(run)
            # Iterations take longer than the window. It begins now and holds one or two: had it begun with the first
            # step, it would hold those of the warm-up, which cost no update.
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
                self._watch_batches(run)
                if self.count:
                    self._counter, self._counted_from = probes.CountedQuestions(), self._ticks
                    self._counter.__enter__()
            elif self.count and self._ticks - self._counted_from >= COUNTED_ITERATIONS:
                self._stop_counting()
        if self._learning > 1 and self._learning & (self._learning - 1) == 0 and self._settled(run):
            self._begin(run)

    def close(self) -> None:
        """Ends what the window changed in this process; also after a run that failed."""
        self._stop_counting()

    def _settled(self, run: Run) -> bool:
        """Agreed at iterations 2, 4, 8, ... after the first update."""
        return self._agreed(run, time.perf_counter() - self._learning_since >= SETTLE_S)

    def _agreed(self, run: Run, mine: bool) -> bool:
        """True on all ranks where it is on one."""
        return bool(run.ranks.max_(torch.tensor([mine], dtype=torch.int64, device=run.device)))

    def _begin(self, run: Run) -> None:
        self._stop_counting()
        self._release(run)
        self._measuring = True
        self._start = (run.env_steps, run.grad_steps, self._ticks)
        self._reductions.clear()
        self._env_facts = _env_facts(run)
        self._meter = HostMeter()
        memory.reset_peak(run.device)
        run.restart_clocks()

    def _finish(self, run: Run) -> None:
        self.interrupted = run.signalled
        settled = self._measuring
        if not settled:  # the run is over before it settled: all of it is the window
            self._stop_counting()
            self._release(run)
            self._start, self._env_facts, self._meter = (0, 0, 0), None, HostMeter()
        phases = run.clock.whole()
        host = self._meter.read(phases.wall_s) if settled else None
        facts = self._facts(run, settled)
        facts |= {} if host is None else {"host": host}
        active = None
        if self.probe and self._batch is not None:
            facts |= probes.of_update(run.part("learner").update, self._batch, run.device, run.ranks)
            each = self._reductions.within(lambda: run.part("learner").update(self._batch))
            own = each.figures(facts["grad_steps"] / max(facts["iterations"], 1))
            facts |= max(facts, own, key=lambda seen: seen["reductions"])  # a graph's replay calls nothing of ours
            if self.count:
                facts["update_flops"] = flops.counted(lambda: run.part("learner").update(self._batch))
                facts["peak_flops_s"] = peak(run.device, run.settings.precision)
            if run.device.type == "cuda" and self.count:  # captured updates are not started one by one
                active = probes.kernel_active(lambda: run.part("learner").update(self._batch))
        mine = {"ledger": Ledger.of(phases, active).to_dict(), "facts": Facts(**facts).to_dict()}
        everyone = run.ranks.gather(mine)
        self.ledgers = [Ledger.from_dict(rank["ledger"]) for rank in everyone]
        self.facts = [Facts.from_dict(rank["facts"]) for rank in everyone]
        raise Measured

    def _facts(self, run: Run, settled: bool) -> dict[str, Any]:
        env, ticks = run.part("env"), self._ticks - self._start[2]
        facts: dict[str, Any] = {
            "iterations": ticks,
            "env_steps": run.env_steps - self._start[0],
            "grad_steps": run.grad_steps - self._start[1],
            "world_size": run.ranks.world_size,
            "cores": cores(),
            "threads": torch.get_num_threads(),
            "precision": run.settings.precision,
            "syncs_per_iteration": self._syncs,
            "sync_s": probes.question_s(run.device),
            "settled": settled,
            "memory_bytes": memory.peak(run.device),
            **self._reductions.figures(1 / max(ticks, 1)),
        }
        if env is not None:
            leaves = tree_leaves(env.spec.obs)
            facts |= {
                "num_envs": env.num_envs,
                "overlappable": env.spec.overlappable,
                "can_overlap": env.spec.overlappable and run.part("replay") is not None,
                "overlap": run.settings.overlap and env.spec.overlappable,
                "draws": any(leaf.dtype == torch.uint8 and len(leaf.shape) >= 3 for leaf in leaves),
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

    # -- the learner by itself --------------------------------------------------------------------------------------

    def _watch_batches(self, run: Run) -> None:
        """Keeps the last batch that an update is handed until the window begins."""
        learner = run.part("learner")
        if not self.probe or not hasattr(learner, "update"):
            return
        update = type(learner).update

        def seen(batch: Tree) -> dict:
            if run.device.type == "cpu" or not torch.cuda.is_current_stream_capturing():
                self._batch = batch
            return update(learner, batch)

        learner.update = seen

    def _release(self, run: Run) -> None:
        learner = run.part("learner")
        if learner is not None:
            learner.__dict__.pop("update", None)
        if isinstance(self._batch, dict) and "carry" in self._batch:
            self._batch = None  # whole sequences: their rows are not independent
        if self._batch is not None:
            self._batch = tree_map(lambda leaf: leaf.clone(), self._batch)

    def _stop_counting(self) -> None:
        if self._counter is not None and self._counter.active:
            self._counter.__exit__(None, None, None)
            self._syncs = self._counter.count / max(1, self._ticks - self._counted_from)


def _env_facts(run: Run) -> dict[str, Any] | None:
    facts = getattr(run.part("env"), "facts", None)
    return facts() if callable(facts) else None
