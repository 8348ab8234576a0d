"""Model: a run's throughput from the seconds of its parts, so that a changed setting can be predicted.

An iteration collects S environment steps and does U updates (an off-policy loop: one step of all environments; an
on-policy loop: a rollout). Its time is

    serial      env + act + rest + U t_update
    overlapped  act + rest + max(env_wait, U t_update) + env

where env, act and rest are affine in the environments, a + b n, and t_update is affine in the rows of its batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger

STEP_ACCOUNTS = ("env", "env_wait", "act", "store", "h2d", "other", "log", "data_wait")
UPDATE_ACCOUNTS = ("update", "sample", "launch")


@dataclass(frozen=True)
class Affine:
    """a + b n seconds."""

    a: float
    b: float

    def __call__(self, n: float) -> float:
        return self.a + self.b * n

    @classmethod
    def through(cls, n: float, seconds: float, m: float | None = None, other: float = 0.0) -> Affine:
        """The line through one or two points, with neither part below 0; one point alone is all fixed cost."""
        if m is None or m == n:
            return cls(seconds, 0.0)
        slope = min(max(0.0, (other - seconds) / (m - n)), seconds / n)
        return cls(seconds - slope * n, slope)

    def scaled(self, factor: float) -> Affine:
        return Affine(self.a * factor, self.b * factor)


@dataclass(frozen=True)
class Throughput:
    """Seconds of the parts of an iteration of one rank.

    Attributes:
        num_envs: Environments of this rank.
        steps: Environment steps of an iteration, over all ranks.
        updates: Updates of an iteration.
        rows: Rows of a batch.
        env: Seconds of stepping in this process and of waking workers, over the iteration, by environments.
        wait: Seconds of waiting for workers, by environments: what overlap hides.
        act: Everything else that is done once a step, by environments.
        update: Seconds of one update with its sampling, by rows.
        comm: Seconds of collectives for each update.
        fixed: Seconds of an iteration that none of these changes: returns, evaluation, saving.
        overlap: Updates run while workers step.
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
        """Seconds of all updates of an iteration, collectives included."""
        return self.updates * (self.update(self.rows) + self.comm)

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration."""
        n = self.num_envs
        apart = self.wait(n) + self.update_s
        together = max(self.wait(n), self.update_s) if self.overlap else apart
        return self.env(n) + self.act(n) + self.fixed + together

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.iteration_s

    # -- settings ---------------------------------------------------------------------------------------------------

    def with_envs(self, num_envs: int) -> Throughput:
        """Other environments in the same number of steps each; the updates a transition stay."""
        factor = num_envs / self.num_envs
        return replace(self, num_envs=num_envs, steps=self.steps * factor, updates=self.updates * factor)

    def with_ranks(self, ranks: float, comm: float) -> Throughput:
        """`ranks` times as many ranks that share environments and batch, with so many seconds of collectives each."""
        rows = max(1, round(self.rows / ranks))
        return replace(self, num_envs=max(1, round(self.num_envs / ranks)), rows=rows, comm=comm)

    def with_schedule(self, update_interval: int, updates_per_interval: int) -> Throughput:
        """Another update ratio: u updates each k transitions."""
        return replace(self, updates=self.steps * updates_per_interval / update_interval)

    def with_updates(self, updates: float) -> Throughput:
        """Another number of updates of an iteration."""
        return replace(self, updates=updates)

    def with_batch(self, rows: int) -> Throughput:
        """Batches of other sizes, as many of them."""
        return replace(self, rows=rows)

    def with_minibatches(self, factor: float) -> Throughput:
        """`factor` times as many mini-batches of a rollout, each so much smaller."""
        return replace(self, updates=self.updates * factor, rows=max(1, round(self.rows / factor)))

    def with_overlap(self) -> Throughput:
        """Updates while workers step: gains at most the smaller of the two."""
        return replace(self, overlap=True)

    def with_wait(self, seconds: float) -> Throughput:
        """Another time of waiting for the workers, such as that of more of them."""
        return replace(self, wait=Affine(seconds, 0.0))

    def with_update_factor(self, factor: float) -> Throughput:
        """Updates that take `factor` of their time: another precision, compiled, other threads."""
        return replace(self, update=self.update.scaled(factor))


def fit(ledger: Ledger, facts: Facts, other: tuple[Ledger, Facts] | None = None) -> Throughput:
    """The model of one rank from its window.

    Args:
        ledger: Of the window.
        facts: Of the window; its probe of two batches gives the slope of an update.
        other: Ledger and facts of a window with other environments; without it no step cost grows with them.
    """
    n, rows, updates = facts.num_envs, facts.batch_rows or 1, facts.grad_steps / max(facts.iterations, 1)

    def part(*accounts: str) -> Affine:
        here = sum(ledger.seconds.get(name, 0.0) for name in accounts) / max(facts.iterations, 1)
        if other is None or not other[1].iterations:
            return Affine.through(max(n, 1), here)
        there = sum(other[0].seconds.get(name, 0.0) for name in accounts) / other[1].iterations
        return Affine.through(n, here, other[1].num_envs, there)

    spent = sum(ledger.seconds.get(name, 0.0) for name in UPDATE_ACCOUNTS)
    if facts.overlap:  # what the updates hid of the simulators' time is not in the ledger: the workers saw it
        wait = max((sum(facts.env_step_s[row] for row in rows) for rows in facts.worker_rows), default=0.0)
        waiting = Affine(max(wait, part("env_wait").a), 0.0)
    else:
        waiting = part("env_wait")
    each = spent / max(facts.grad_steps, 1)
    fixed_share = facts.fixed_update_share
    update = Affine(each, 0.0) if fixed_share is None else Affine(each * fixed_share, each * (1 - fixed_share) / rows)
    comm = ledger.seconds.get("collectives", 0.0) / max(facts.grad_steps, 1)
    named = {"env_wait", "env", "collectives", *UPDATE_ACCOUNTS, *STEP_ACCOUNTS}
    rest = sum(seconds for name, seconds in ledger.seconds.items() if name not in named) / max(facts.iterations, 1)
    return Throughput(
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
