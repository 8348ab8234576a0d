"""Forecast: rate, time and end of a run on some ranks, from a window of them, or of one rank's share of the work.

Where the ranks can run here, a window of them all has everything in it. Else a rank does its share alone:

    iteration = max(share alone + t_comm, processor seconds of all ranks / cores)

A window of the share gives the first term, `Comm` the second, and the ledger with the workers' figures the third: ranks
of one machine share its cores, so that more ranks than cores gain nothing. Evaluations and checkpoints are taken out of
the rate and put back as often as the run has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from powerband.tune.comm import Comm
from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger
from powerband.tune.model import fit

PARTS = {
    "env": ("env", "env_wait"),
    "act": ("act", "store", "h2d"),
    "update": ("update", "sample", "returns", "launch"),
    "comm": ("collectives",),
}
"""What limits a row -> the accounts that are its seconds; all others are "other"."""
CADENCES = {"eval": "eval_interval", "save": "save_interval"}
"""Account -> the setting that says how often its spans come, in environment steps."""


@dataclass(frozen=True)
class Budget:
    """What ends a run, and what it does on its way.

    Attributes:
        env_steps: Environment steps over all ranks.
        time_limit_s: Seconds; 0 for none.
        warmup: Steps before the first update.
        intervals: "eval" and "save" -> environment steps between two of them; 0 for none.
    """

    env_steps: int
    time_limit_s: float = 0.0
    warmup: int = 0
    intervals: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Forecast:
    """A run on some ranks.

    Attributes:
        ranks: How many.
        budget: What ends it.
        steps: Environment steps of an iteration, over all ranks.
        parts: Seconds of an iteration by what they are: env, act, update, other, comm, and cores (waiting for one).
        update_s: Seconds of the iteration that it has only once updates are due.
        apart: "eval" and "save" -> seconds of one; those whose cost is unknown are left out.
        memory_bytes: Of one rank.
    """

    ranks: int
    budget: Budget
    steps: float
    parts: dict[str, float]
    update_s: float
    apart: dict[str, float]
    memory_bytes: int

    @classmethod
    def of(
        cls,
        ranks: int,
        ledger: Ledger,
        facts: Facts,
        comm: Comm | None,
        budget: Budget,
        apart: dict[str, float],
        alone: bool = True,
    ) -> Forecast:
        """From a window of the share of one rank, or of all ranks.

        Args:
            ranks: How many share the work.
            ledger, facts: Of the window; of several ranks, of the leading one.
            comm: What an all-reduce costs; None with one rank, and where all ranks ran.
            budget: What ends the run.
            apart: Seconds of an evaluation and of a checkpoint as seen elsewhere; the window's own come first.
            alone: The window is of one rank's share, not of all ranks.
        """
        iterations = max(facts.iterations, 1)
        seen = {name: seconds / iterations for name, seconds in ledger.seconds.items() if name not in CADENCES}
        known = {part: sum(seen.get(name, 0.0) for name in names) for part, names in PARTS.items()}
        parts = {**known, "other": sum(seen.values()) - sum(known.values())}
        own_s = sum(parts.values())

        model = fit(ledger, facts)
        updates = max(model.updates, 1e-12)
        comm_s = 0.0 if comm is None else comm.seconds(ranks, facts.reductions, facts.reduced_bytes)
        joined = replace(model, comm=model.comm + comm_s / updates)
        added_s = joined.iteration_s - model.iteration_s  # with overlap, workers step meanwhile
        parts["comm"] += added_s
        update_s = joined.iteration_s - replace(joined, updates=0.0).iteration_s

        trained = 1 - ledger.share(*CADENCES)
        cpu_s = (ledger.cpu_s + facts.env_cpu_s) / iterations * trained
        busy = ranks * cpu_s / max(facts.cores, 1)
        parts["cores"] = max(0.0, busy - own_s - added_s) if alone else 0.0
        own = {name: ledger.mean_s(name) for name in CADENCES if ledger.mean_s(name)}
        steps = facts.env_steps / iterations * (ranks if alone else 1)
        return cls(ranks, budget, steps, parts, update_s, {**apart, **own}, facts.memory_bytes)

    @property
    def iteration_s(self) -> float:
        return sum(self.parts.values())

    @property
    def steps_per_s(self) -> float:
        """Environment steps a second over all ranks, between evaluations and checkpoints."""
        return self.steps / self.iteration_s

    @property
    def limit(self) -> tuple[str, float]:
        """What takes most of an iteration, and its share of it."""
        part = max(self.parts, key=self.parts.get)
        return part, self.parts[part] / self.iteration_s

    @property
    def unknown(self) -> list[str]:
        """Cadences that the run reaches and whose cost nobody measured."""
        reached = (name for name, every in self.budget.intervals.items() if 0 < every <= self.env_steps)
        return [name for name in reached if name not in self.apart]

    # -- to the end ---------------------------------------------------------------------------------------------------

    def seconds_to(self, env_steps: float) -> float:
        """Seconds from the first step to `env_steps`, evaluations and checkpoints of known cost included."""
        warming = min(env_steps, self.budget.warmup)
        iterations = env_steps / self.steps * self.iteration_s - warming / self.steps * self.update_s
        return iterations + sum(times * self.apart.get(name, 0.0) for name, times in self.times(env_steps).items())

    def times(self, env_steps: float) -> dict[str, int]:
        """How often evaluations and checkpoints come until `env_steps`."""
        return {name: int(env_steps // every) for name, every in self.budget.intervals.items() if every}

    @property
    def ends_by(self) -> str:
        """Which of its two budgets ends the run: env_steps or time_limit_s."""
        limit = self.budget.time_limit_s
        return "time_limit_s" if 0 < limit < self.seconds_to(self.budget.env_steps) else "env_steps"

    @property
    def env_steps(self) -> int:
        """Environment steps at the end of the run."""
        if self.ends_by == "env_steps":
            return self.budget.env_steps
        low, high = 0, self.budget.env_steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.seconds_to(middle) <= self.budget.time_limit_s else (low, middle)
        return low

    @property
    def seconds(self) -> float:
        """Seconds of the run, from its first step to its end."""
        return self.budget.time_limit_s if self.ends_by == "time_limit_s" else self.seconds_to(self.budget.env_steps)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        part, share = self.limit
        return {
            "ranks": self.ranks,
            "steps_per_s": self.steps_per_s,
            "seconds": self.seconds,
            "hours": self.seconds / 3600,
            "env_steps": self.env_steps,
            "ends_by": self.ends_by,
            "memory_bytes": self.memory_bytes,
            "limit": part,
            "limit_share": share,
            "iteration": {"env_steps": self.steps, "seconds": self.iteration_s, "parts": self.parts},
            "apart": {
                name: {"times": times, "seconds_each": self.apart.get(name)}
                for name, times in self.times(self.env_steps).items()
            },
            "unknown": self.unknown,
        }
