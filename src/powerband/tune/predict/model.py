"""ThroughputModel: predicts the throughput of changed settings from the seconds of the parts of an iteration.

An iteration collects S environment steps and makes U updates. An off-policy loop steps all environments once per
iteration, an on-policy loop collects one rollout. The time of an iteration is

    serial      env + act + rest + U t_update
    overlapped  act + rest + max(env_wait, U t_update) + env

env is the time for stepping environments, env_wait for waiting for their workers, act for choosing actions, t_update
for one update, and rest for all other work. env, act and rest are affine in the number n of environments (a + b n),
and t_update is affine in the rows of its batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger

STEP_ACCOUNTS = ("env", "env_wait", "act", "store", "h2d", "other", "log", "data_wait")
UPDATE_ACCOUNTS = ("update", "sample")


@dataclass(frozen=True)
class Affine:
    """Linear model a + b n of a duration in seconds, where n is a number of environments or of rows in a batch."""

    a: float
    b: float

    def __call__(self, n: float) -> float:
        return self.a + self.b * n

    @classmethod
    def from_points(cls, n: float, seconds: float, m: float | None = None, other: float = 0.0) -> Affine:
        """Returns the linear model through one or two measured points, with a, b >= 0; one point gives a constant.

        Args:
            n: First size.
            seconds: Seconds at the first size.
            m: Second size; None if there is one point.
            other: Seconds at the second size.
        """
        if m is None or m == n:
            return cls(seconds, 0.0)
        slope = min(max(0.0, (other - seconds) / (m - n)), seconds / n)
        return cls(seconds - slope * n, slope)

    def scaled(self, factor: float) -> Affine:
        """Returns the model of `factor` times this duration."""
        return Affine(self.a * factor, self.b * factor)


@dataclass(frozen=True)
class ThroughputModel:
    """Seconds of the parts of an iteration of one rank; predicts the rate after changes of settings.

    An iteration of the training loop is, for example, one step of all environments or one rollout.
    The parts ``env``, ``wait`` and ``act`` are functions of the number of environments.

    Attributes:
        num_envs: Number of environments of this rank.
        steps: Environment steps per iteration, over all ranks.
        updates: Updates per iteration.
        rows: Rows (transitions) per batch.
        env: Seconds per iteration of stepping in this process and of sending actions to workers.
        wait: Seconds per iteration of waiting for worker processes; with overlap, updates run during this time.
        act: Seconds per iteration of all other work per step, such as choosing actions.
        update: Function of the rows: seconds per update, including sampling.
        comm: Seconds of collective calls (all-reduces) per update.
        fixed: Seconds per iteration that do not depend on the settings: computing returns, evaluation, checkpoints.
        overlap: Whether updates run while worker processes step the simulators.
    """

    num_envs: int
    steps: float
    updates: float
    rows: int
    env: Affine
    wait: Affine
    act: Affine
    update: Affine
    comm: float
    fixed: float
    overlap: bool = False

    @property
    def update_s(self) -> float:
        """Seconds of the updates of an iteration, including their all-reduces."""
        return self.updates * (self.update(self.rows) + self.comm)

    @property
    def iteration_s(self) -> float:
        """Seconds per iteration."""
        n = self.num_envs
        wait_and_update = max(self.wait(n), self.update_s) if self.overlap else self.wait(n) + self.update_s
        return self.env(n) + self.act(n) + self.fixed + wait_and_update

    @property
    def steps_per_s(self) -> float:
        """Environment steps per second over all ranks."""
        return self.steps / self.iteration_s

    # -- settings ---------------------------------------------------------------------------------------------------

    def with_envs(self, num_envs: int) -> ThroughputModel:
        """Returns the model for another number of environments.

        The steps per environment and iteration, and the updates per environment step, stay the same. Offline training
        has no environments, so its model is unchanged by any number of them.
        """
        factor = num_envs / self.num_envs if self.num_envs else 1.0
        return replace(self, num_envs=num_envs, steps=self.steps * factor, updates=self.updates * factor)

    def with_ranks(self, ranks: float, comm: float) -> ThroughputModel:
        """Returns the model for more or fewer ranks, which share the same environments and the same batch.

        Args:
            ranks: New number of ranks divided by the present number.
            comm: Seconds of all-reduces per update, with the new number of ranks.
        """
        rows = max(1, round(self.rows / ranks))
        return replace(self, num_envs=max(1, round(self.num_envs / ranks)), rows=rows, comm=comm)

    def with_schedule(self, update_interval: int, updates_per_interval: int) -> ThroughputModel:
        """Returns the model for `updates_per_interval` updates after every `update_interval` environment steps."""
        return replace(self, updates=self.steps * updates_per_interval / update_interval)

    def with_updates(self, updates: float) -> ThroughputModel:
        """Returns the model for another number of updates per iteration."""
        return replace(self, updates=updates)

    def with_batch(self, rows: int) -> ThroughputModel:
        """Returns the model for another number of rows per batch and the same number of updates."""
        return replace(self, rows=rows)

    def with_minibatches(self, factor: float) -> ThroughputModel:
        """Returns the model for another number of mini-batches per rollout.

        Args:
            factor: New number of mini-batches divided by the present number; the size of a mini-batch is divided by it.
        """
        return replace(self, updates=self.updates * factor, rows=max(1, round(self.rows / factor)))

    def with_overlap(self) -> ThroughputModel:
        """Returns the model for a loop that makes updates while worker processes step the simulators.

        Of waiting and updating, only the longer one then counts.
        """
        return replace(self, overlap=True)

    def with_wait(self, seconds: float) -> ThroughputModel:
        """Returns the model for `seconds` of waiting for worker processes per iteration, such as with more workers."""
        return replace(self, wait=Affine(seconds, 0.0))

    def with_update_factor(self, factor: float) -> ThroughputModel:
        """Returns the model for updates that take `factor` times as long.

        Examples are updates with a different precision, with compiled losses or with a different number of threads.
        """
        return replace(self, update=self.update.scaled(factor))


def fit(ledger: Ledger, facts: WindowFacts, other: tuple[Ledger, WindowFacts] | None = None) -> ThroughputModel:
    """Fits the throughput model of one rank to its window, the measured part of a run.

    Args:
        ledger: Wall time of the window per account (category of time).
        facts: Other figures of the window. If updates with two batch sizes were timed, they determine
            how the seconds of an update grow with its batch.
        other: Ledger and facts of a window with another number of environments, which give the slope over
            environments. If None, the costs per step do not depend on the number of environments.
    """
    ledger, other = ledger.by_host(), None if other is None else (other[0].by_host(), other[1])
    n, rows, updates = facts.num_envs, facts.batch_rows or 1, facts.grad_steps / max(facts.iterations, 1)

    def part(*accounts: str) -> Affine:
        seconds = sum(ledger.seconds.get(name, 0.0) for name in accounts) / max(facts.iterations, 1)
        if other is None or not other[1].iterations:
            return Affine.from_points(max(n, 1), seconds)
        other_seconds = sum(other[0].seconds.get(name, 0.0) for name in accounts) / other[1].iterations
        return Affine.from_points(n, seconds, other[1].num_envs, other_seconds)

    spent = sum(ledger.seconds.get(name, 0.0) for name in UPDATE_ACCOUNTS)
    if facts.overlap:  # the ledger lacks the time of the simulators that the updates hid; the workers measured it
        wait = max((sum(facts.env_step_s[row] for row in rows) for rows in facts.worker_rows), default=0.0)
        waiting = Affine(max(wait, part("env_wait").a), 0.0)
    else:
        waiting = part("env_wait")
    update_s = spent / max(facts.grad_steps, 1)
    fixed_share = facts.fixed_update_share
    share = 1.0 if fixed_share is None else fixed_share
    update = Affine(update_s * share, update_s * (1 - share) / rows)
    comm = ledger.seconds.get("collectives", 0.0) / max(facts.grad_steps, 1)
    named = {"env_wait", "env", "collectives", *UPDATE_ACCOUNTS, *STEP_ACCOUNTS}
    rest = sum(seconds for name, seconds in ledger.seconds.items() if name not in named) / max(facts.iterations, 1)
    return ThroughputModel(
        num_envs=n,
        steps=facts.env_steps / max(facts.iterations, 1),
        updates=updates,
        rows=rows,
        env=part("env"),
        wait=waiting,
        act=part(*(name for name in STEP_ACCOUNTS if name not in ("env", "env_wait"))),
        update=update,
        comm=comm,
        fixed=rest,
        overlap=facts.overlap,
    )
