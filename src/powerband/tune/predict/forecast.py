"""Forecast: predicts rate, duration and end of a run on a number of ranks, from one measured window.

If this machine can run the ranks, the window measures all of them and contains every cost. Otherwise it measures one
rank with its share of the work:

    iteration = max(share alone + t_comm, processor seconds of all ranks / cores)

The window gives the time of the share alone, and `CommunicationModel` gives t_comm. The processor seconds come from the
ledger and the workers: ranks of one machine share its cores, so more ranks than cores do not help. Evaluations and
checkpoints are excluded from the rate and added as often as the run has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger
from powerband.tune.predict.comm import CommunicationModel
from powerband.tune.predict.model import fit

ACCOUNTS_BY_PART = {
    "env": ("env", "env_wait"),
    "act": ("act", "store", "h2d"),
    "update": ("update", "sample", "returns"),
    "comm": ("collectives",),
}
"""Part of an iteration -> its accounts (categories of measured time); all other accounts form the part ``other``."""
CADENCES = {"eval": "eval_interval", "save": "save_interval"}
"""Account of an event (evaluation, checkpoint) -> the setting with its interval in environment steps."""


@dataclass(frozen=True)
class Budget:
    """Limits that end a run, and the intervals of its evaluations and checkpoints.

    Attributes:
        env_steps: Environment steps of the run, over all ranks.
        time_limit_s: Time limit in seconds; 0 is no limit.
        learning_starts: Environment steps before the first update.
        intervals: "eval" and "save" -> environment steps between two evaluations or checkpoints; 0 is never.
        eval_interval_s: Seconds of training between two evaluations, if `intervals` has none for them; 0 is never.
    """

    env_steps: int
    time_limit_s: float = 0.0
    learning_starts: int = 0
    intervals: dict[str, int] = field(default_factory=dict)
    eval_interval_s: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """Predicted rate and duration of a run on a number of ranks.

    An iteration of the training loop is, for example, one step of all environments or one rollout.

    Attributes:
        ranks: Number of ranks.
        budget: Limits that end the run, and the intervals of its evaluations and checkpoints.
        steps: Environment steps per iteration, over all ranks.
        parts: Part of an iteration -> its seconds per iteration. The parts are env (simulators), act, update, comm
            (all-reduces), cores (waiting for a core) and other (the remaining time).
        update_s: Seconds by which an iteration is shorter without updates, as before `Budget.learning_starts`. With
            overlap, updates that run while simulators step do not count.
        cadence_costs: "eval" and "save" -> seconds per evaluation or checkpoint; without entry if unknown.
        memory_bytes: Memory of one rank; 0 if unknown.
    """

    ranks: int
    budget: Budget
    steps: float
    parts: dict[str, float]
    update_s: float
    cadence_costs: dict[str, float]
    memory_bytes: int

    @classmethod
    def from_window(
        cls,
        ranks: int,
        ledger: Ledger,
        facts: WindowFacts,
        comm: CommunicationModel | None,
        budget: Budget,
        cadence_costs: dict[str, float],
        alone: bool = True,
    ) -> Forecast:
        """Creates a forecast from a window, the measured part of a short run.

        Args:
            ranks: Number of ranks that share the work.
            ledger: Wall time of the window per account (category of time), on the leading rank (rank 0).
            facts: Figures of the window besides its ledger, on the leading rank.
            comm: Cost of all-reduces; None with one rank, or if the window measured all ranks.
            budget: Limits that end the run, and the intervals of its evaluations and checkpoints.
            cadence_costs: Seconds per evaluation and checkpoint measured in another run; used if this window has none.
            alone: True if the window measured one rank with its share of the work; False if it measured all ranks.
        """
        iterations = max(facts.iterations, 1)
        accounts = {name: seconds / iterations for name, seconds in ledger.seconds.items() if name not in CADENCES}
        named = {part: sum(accounts.get(name, 0.0) for name in names) for part, names in ACCOUNTS_BY_PART.items()}
        parts = {**named, "other": sum(accounts.values()) - sum(named.values())}
        alone_s = sum(parts.values())

        model = fit(ledger, facts)
        updates = max(model.updates, 1e-12)
        comm_s = 0.0 if comm is None else comm.seconds(ranks, facts.reductions, facts.reduced_bytes)
        with_comm = replace(model, comm=model.comm + comm_s / updates)
        # With overlap this is less than comm_s, because the simulators step meanwhile.
        added_s = with_comm.iteration_s - model.iteration_s
        parts["comm"] += added_s
        update_s = with_comm.iteration_s - replace(with_comm, updates=0.0).iteration_s

        training_share = 1 - ledger.share(*CADENCES)
        cpu_s = (ledger.cpu_s + facts.env_cpu_s) / iterations * training_share
        busy = ranks * cpu_s / max(facts.cores, 1)
        parts["cores"] = max(0.0, busy - alone_s - added_s) if alone else 0.0
        measured_costs = {name: ledger.mean_s(name) for name in CADENCES if ledger.mean_s(name)}
        steps = facts.env_steps / iterations * (ranks if alone else 1)
        return cls(ranks, budget, steps, parts, update_s, {**cadence_costs, **measured_costs}, facts.memory_bytes)

    @property
    def iteration_s(self) -> float:
        """Seconds per iteration, without evaluations and checkpoints."""
        return sum(self.parts.values())

    @property
    def steps_per_s(self) -> float:
        """Environment steps per second over all ranks, between evaluations and checkpoints."""
        return self.steps / self.iteration_s

    @property
    def limit(self) -> tuple[str, float]:
        """The largest part of an iteration, which limits the rate: (name of the part, its share of the iteration)."""
        part = max(self.parts, key=self.parts.__getitem__)
        return part, self.parts[part] / self.iteration_s

    @property
    def unknown(self) -> list[str]:
        """Events ("eval" for evaluations, "save" for checkpoints) that the run reaches and whose cost is unknown."""
        return [name for name, times in self.times(self.env_steps).items() if times and name not in self.cadence_costs]

    # -- to the end ---------------------------------------------------------------------------------------------------

    def seconds_to(self, env_steps: float) -> float:
        """Returns the seconds from the first step to environment step number `env_steps`.

        Evaluations and checkpoints are included if their cost is known.
        """
        return self.training_s(env_steps) + sum(
            times * self.cadence_costs.get(name, 0.0) for name, times in self.times(env_steps).items()
        )

    def training_s(self, env_steps: float) -> float:
        """Returns the seconds of training to step number `env_steps`, without evaluations and checkpoints."""
        without_updates = min(env_steps, self.budget.learning_starts)
        return env_steps / self.steps * self.iteration_s - without_updates / self.steps * self.update_s

    def times(self, env_steps: float) -> dict[str, int]:
        """Returns {"eval": number of evaluations, "save": number of checkpoints} within the first `env_steps` steps."""
        times = {name: int(env_steps // interval) for name, interval in self.budget.intervals.items() if interval}
        if self.budget.eval_interval_s and "eval" not in times:
            times["eval"] = int(self.training_s(env_steps) // self.budget.eval_interval_s)
        return times

    @property
    def ends_by(self) -> str:
        """Limit that ends the run: "env_steps" or "time_limit_s"."""
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
        """Seconds from the first step to the end of the run."""
        return self.budget.time_limit_s if self.ends_by == "time_limit_s" else self.seconds_to(self.budget.env_steps)

    def to_dict(self) -> dict[str, Any]:
        """Returns the forecast as a JSON value.

        ``limit`` is the name of the part of an ``iteration`` that takes longest, and ``apart`` has the number and the
        cost of evaluations and checkpoints.
        """
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
                name: {"times": times, "seconds_each": self.cadence_costs.get(name)}
                for name, times in self.times(self.env_steps).items()
            },
            "unknown": self.unknown,
        }
