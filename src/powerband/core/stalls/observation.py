"""Observation of one rank by a watching process: its progress, the state of its processes, and how long it is silent.

A rank is silent since its last change of phase. A rank without a change of phase may compute for long, so a silent rank
is idle only since the processes of its tree have last used the processor. While a rank is halted, the work of the
processes that it has started is no progress of the run.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from powerband.core.machine.process_states import bytes_transferred, process_state
from powerband.core.machine.utilisation import process_tree, process_usage
from powerband.core.run_folder import process_facts, process_start_ticks
from powerband.core.stalls.progress import END, START, RankProgress

BUSY_SHARE, BUSY_BYTES = 0.05, 100_000
"""Share of one core, and bytes read or written per second, from which a rank works; threads that wait use less."""
RUNNABLE, HALTED = "R", "T"
"""States of a process: it computes, or would if a busy machine had a core for it; the kernel does not let it run."""
UNLIMITED_PHASES = (START, END)
"""Phases that belong to the recipe, such as recording data. They may work for any time."""
EVALUATING_PHASE = "eval"
"""Phase in which a rank evaluates, or waits for the process that does."""
SLOW_PHASES = (*UNLIMITED_PHASES, EVALUATING_PHASE, "save")
BUSY_LIMIT = 10
"""Limit of an ordinary phase that works, in units of ``stall_s``, which is the limit of one that does not."""
SLOW_IDLE_LIMIT, SLOW_BUSY_LIMIT = 10, 60
"""The same two limits of a slow phase, and of everything before the first update, which compiles."""
NEWS_S = 5.0
"""Seconds after which news of another machine says nothing about the present: it or its launcher may be gone."""


@dataclass(frozen=True)
class Observation:
    """One rank at one moment.

    Attributes:
        progress: What the rank has written.
        state: State letter of its process, as in ``/proc``.
        stopped: Ids of the processes that it has started and that are stopped.
        silent_s: Seconds since its last change of phase.
        idle_s: Seconds for which its processes have not worked either; of a halted rank, its own process alone.
        host: Name of its machine.
        age_s: Seconds since its own machine has observed it; `silent_s` and `idle_s` include them.
    """

    progress: RankProgress
    state: str = "R"
    stopped: tuple[int, ...] = ()
    silent_s: float = 0.0
    idle_s: float = 0.0
    host: str = ""
    age_s: float = 0.0

    @property
    def halted(self) -> bool:
        """True if the kernel does not let the rank run."""
        return self.state == HALTED

    @property
    def waits_for_ranks(self) -> bool:
        """True if it runs and waits for other ranks."""
        return self.progress.waiting and not self.halted

    @property
    def slow(self) -> bool:
        """True in a phase that may take long."""
        return self.progress.phase in SLOW_PHASES or not self.progress.updates

    def overdue(self, stall_s: float) -> bool:
        """True if the rank itself has been without progress for too long, when its machine has observed it."""
        if self.age_s > NEWS_S:
            return False
        idle_s, silent_s = self.idle_s - self.age_s, self.silent_s - self.age_s  # a lost machine grows old, not idle
        if self.halted or self.stopped:
            return idle_s > stall_s
        idle, busy = (SLOW_IDLE_LIMIT, SLOW_BUSY_LIMIT) if self.slow else (1, BUSY_LIMIT)
        limited = self.progress.phase not in UNLIMITED_PHASES
        return idle_s > idle * stall_s or (limited and silent_s > busy * stall_s)

    def to_json(self) -> dict[str, Any]:
        """Returns the observation as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: dict[str, Any], age_s: float) -> Observation:
        """Restores an observation that another machine made `age_s` seconds ago."""
        each = cls(**{**facts, "progress": RankProgress(**facts["progress"]), "stopped": tuple(facts["stopped"])})
        return replace(each, silent_s=each.silent_s + age_s, idle_s=each.idle_s + age_s, age_s=age_s)


class RankObserver:
    """Observes one rank from another process or thread.

    Args:
        page: Page of the rank.
        suspect_s: Seconds of silence after which its processes are looked at; before, an observation reads memory only.
    """

    def __init__(self, page: memoryview, suspect_s: float) -> None:
        self.page, self.suspect_s = page, suspect_s
        self._since_ns = self._busy_ns = 0
        self._sample: tuple[int, float, int] | None = None
        self._host = process_facts()["hostname"]

    def excuse(self, now_ns: int) -> None:
        """Forgets the silence so far, for example because this process was suspended too."""
        self._since_ns, self._sample = now_ns, None

    def observe(self, now_ns: int) -> Observation | None:
        """Observes the rank at `now_ns` of the monotonic clock; None before its start and after its end."""
        progress = RankProgress.read(self.page)
        if progress is None:
            return None
        since = max(progress.beat_ns, self._since_ns)
        silent_s = max(0.0, (now_ns - since) / 1e9)
        if silent_s < self.suspect_s:
            self._sample = None
            return Observation(progress, silent_s=silent_s, idle_s=silent_s, host=self._host)
        if process_start_ticks(progress.pid) != progress.began:
            return None
        others = {os.getpid()}
        if progress.evaluator and progress.phase != EVALUATING_PHASE:  # it works on while the rank hangs
            others |= set(process_tree(progress.evaluator))
        pids = [pid for pid in process_tree(progress.pid) if pid not in others]
        states = {pid: process_state(pid) for pid in pids}
        state = states.get(progress.pid, "")
        if state == "t":  # a debugger holds it
            self.excuse(now_ns)
            return Observation(progress, host=self._host)
        counted = [progress.pid] if state == HALTED else pids
        cpu_s, transferred = process_usage(counted)[0], sum(map(bytes_transferred, counted))
        if self._sample is not None:
            seconds = (now_ns - self._sample[0]) / 1e9
            runnable = any(states[pid] == RUNNABLE for pid in counted)
            computes = runnable or cpu_s - self._sample[1] > BUSY_SHARE * seconds
            if computes or transferred - self._sample[2] > BUSY_BYTES * seconds:
                self._busy_ns = now_ns
        self._sample = now_ns, cpu_s, transferred
        stopped = tuple(pid for pid, each in states.items() if pid != progress.pid and each == HALTED)
        idle_s = (now_ns - max(since, self._busy_ns)) / 1e9
        return Observation(progress, state, stopped, silent_s, idle_s, self._host)
