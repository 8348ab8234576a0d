"""Clock: divides the time of one thread into accounts; each nanosecond belongs to exactly one of them.

The time of an inner span is not part of the outer span, and the time outside of all spans belongs to ``other``.

The sampler reads the clock from another thread, without a lock. Since Python 3.10 the interpreter changes threads at
calls and jumps only. There is none between the sum of an account and `Clock.since`, so a reading never counts time
twice. A change between `Clock.since` and `Clock.top` gives the time since then, microseconds, to the wrong account, in
that reading only. Python 3.9 may change threads earlier, so one reading may count the open span twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

BINS = 128
"""Bins of a histogram of durations, two per doubling: bin k counts 2**((k - 1) / 2) to 2**(k / 2) nanoseconds."""
OTHER = "other"
SPANS = 1500
"""Number of recorded spans for the timeline of the report."""
MARK_NS = 10_000_000
"""Smallest distance of two marks in nanoseconds."""
MOST_ENVS = 1000
"""Number of environments that are counted apart; a script may make environments again and again."""


class Account:
    """Times of one account.

    Attributes:
        name: Name of the account.
        ns: Nanoseconds of the spans that have ended, and of the parts of the open ones before `Clock.since`.
        bins: Histogram of the durations of the spans, which include inner spans.
        longest: Longest duration in nanoseconds.
    """

    __slots__ = ("name", "ns", "bins", "longest")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ns = self.longest = 0
        self.bins = [0] * BINS


class Clock:
    """Times of one thread.

    Attributes:
        thread: Identifier of the thread, the one that trains.
        accounts: Name -> account.
        top: Account of the innermost open span; ``other`` outside of all.
        since: Time of the last change of `top`.
        stack: Of each open span: the account around it, and its start.
        env_depth: Number of open environment calls, so that nested wrappers count once.
        render_depth, render_ns: Number of open calls that draw an image of an environment, and their nanoseconds, which
            are a part of the time of the environments or of another account.
        env_steps: Environment steps; a call of a vector environment counts all of its environments.
        env_calls: Identity of an environment -> [its class, calls of ``step``, environments in one call].
        earlier_envs: Name of a class -> environment steps and largest number of environments, of those that left
            `env_calls`.
        optimizers: Identity of an optimiser -> number of its steps.
        recorded, trace: Spans while they are recorded, and afterwards: account, start, end.
        marks: Progress of the script while a trial needs it: (updates, environment steps, time), at most 200 per
            second. None records no progress.
        after_mark: Function that is called after each step while a trial records progress; None calls nothing.
        waiting, first, previous: Whether the sampler waits for the next event, the account of that event, and the
            account of the event before it.
    """

    def __init__(self) -> None:
        self.marks: list[tuple[int, int, int]] | None = None
        self.after_mark: Callable[[], None] | None = None
        self.restart()

    def restart(self) -> None:
        """Discards all times, and measures the present thread from now on."""
        self.thread = threading.get_ident()
        self.top = Account(OTHER)
        self.accounts = {OTHER: self.top}
        self.stack: list[tuple[Account, int]] = []
        self.env_depth = self.render_depth = self.render_ns = 0
        self.env_steps = 0
        self.optimizers: dict[int, int] = {}
        self.env_calls: dict[int, list[Any]] = {}
        self.earlier_envs: dict[str, tuple[int, int]] = {}
        self.waiting, self.first, self.previous = False, OTHER, OTHER
        self.recorded: list[tuple[str, int, int]] | None = None
        self.trace: list[tuple[str, int, int]] = []
        self.since = self.marked_ns = perf_counter_ns()
        self.last_mark: tuple[int, int, int] | None = None
        if self.marks:
            self.marks = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what a copy of a timed function has in place of the clock: no thread is that of the copy."""
        return SimpleNamespace, (), {"thread": None, "env_depth": 0, "render_depth": 0}

    def env_call(self, fn: Callable[..., Any], is_step: bool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a method of the outermost environment in a span, and counts its steps."""
        self.env_depth = 1
        self.enter("env")
        try:
            return fn(*args, **kwargs)
        finally:
            self.leave()
            self.env_depth = 0
            if is_step:
                self.count_env_steps(args[0])

    def count_env_steps(self, env: Any) -> None:
        """Counts one call of ``step`` of the outermost environment."""
        calls = self.env_calls.get(id(env))
        if calls is None or calls[0] is not type(env):
            calls = self._add_env(env)
        calls[1] += 1
        self.env_steps += calls[2]
        if self.marks is not None:
            self.mark(self.marks)

    def _add_env(self, env: Any) -> list[Any]:
        if len(self.env_calls) >= MOST_ENVS or id(env) in self.env_calls:  # an object that is gone had this identity
            self.earlier_envs, self.env_calls = self.env_classes(), {}
        calls = self.env_calls[id(env)] = [type(env), 0, number_of_envs(env)]
        return calls

    def env_classes(self) -> dict[str, tuple[int, int]]:
        """Returns environment steps and largest number of environments in one call, by the name of the class."""
        classes, calls = dict(self.earlier_envs), list(self.env_calls.values())
        for cls, number, size in calls:
            steps, largest = classes.get(cls.__name__, (0, 0))
            classes[cls.__name__] = (steps + number * size, max(largest, size))
        return classes

    def count_optimizer_step(self, key: int) -> int:
        """Counts one step of an optimiser and returns the number of its steps."""
        steps = self.optimizers[key] = self.optimizers.get(key, 0) + 1
        if self.marks is not None:
            self.mark(self.marks)
        return steps

    def mark(self, marks: list[tuple[int, int, int]]) -> None:
        """Adds a mark of the progress, right after an optimiser step or an environment step.

        The last step before a pause is a mark too, so that the count during the pause is known.
        """
        now = (self.updates, self.env_steps, self.since)
        if self.since - self.marked_ns >= MARK_NS:
            if self.last_mark is not None and self.last_mark[2] != self.marked_ns:
                marks.append(self.last_mark)
            marks.append(now)
            self.marked_ns = self.since
        self.last_mark = now
        if self.after_mark is not None:
            self.after_mark()

    @property
    def updates(self) -> int:
        """Steps of the optimiser that steps most often."""
        return max(list(self.optimizers.values()), default=0)

    def record_spans(self) -> None:
        """Starts to record spans, once. When there are `SPANS` of them, they move to `trace`."""
        if not self.trace:
            self.recorded = []

    def enter(self, name: str) -> None:
        """Opens a span of an account."""
        if self.waiting:
            self.waiting, self.first = False, name
        now = perf_counter_ns()
        top = self.top
        top.ns += now - self.since
        self.since = now
        self.stack.append((top, now))
        self.top = self.accounts.get(name) or self._add(name)

    def leave(self) -> None:
        """Closes the innermost span."""
        if not self.stack:  # `restart` has discarded the span: the process was forked inside of it
            return
        now = perf_counter_ns()
        account = self.top
        account.ns += now - self.since
        self.since = now
        self.top, start = self.stack.pop()
        self.previous = account.name
        duration = now - start
        account.bins[(duration * duration).bit_length()] += 1
        if duration > account.longest:
            account.longest = duration
        recorded = self.recorded
        if recorded is not None:
            recorded.append((account.name, start, now))
            if len(recorded) >= SPANS:
                self.recorded, self.trace = None, recorded

    def _add(self, name: str) -> Account:
        account = self.accounts[name] = Account(name)
        return account

    def spent_ns(self, name: str) -> int:
        """Returns the nanoseconds of an account up to the last change of the innermost span."""
        account = self.accounts.get(name)
        return account.ns if account is not None else 0

    def read(self) -> dict[str, Any]:
        """Returns the times since `restart`, as JSON values. The open span counts up to now."""
        for _ in range(5):  # again if the thread has entered or left a span meanwhile
            since, top = self.since, self.top
            accounts = list(self.accounts.values())
            ns = {each.name: each.ns for each in accounts}
            now = perf_counter_ns()
            if since == self.since:
                break
        ns[top.name] = ns.get(top.name, 0) + now - since
        spans = [each for each in accounts if each.name != OTHER]
        bins = {each.name: {i: n for i, n in enumerate(each.bins) if n} for each in spans}
        envs = self.env_classes()
        return {
            "now_ns": now,
            "ns": ns,
            "counts": {name: sum(each.values()) for name, each in bins.items()},
            "worst_ns": {each.name: each.longest for each in spans},
            "bins": bins,
            "env_steps": self.env_steps,
            "num_envs": max([largest for _, largest in envs.values()], default=0),
            "envs": {name: steps for name, (steps, _) in envs.items()},
            "render_ns": self.render_ns,
            "updates": self.updates,
            "optimizer_steps": sum(list(self.optimizers.values())),
        }


def number_of_envs(env: Any) -> int:
    """Returns the number of environments of a vector environment; 1 for any other."""
    for name in ("num_envs", "env_num"):
        value = getattr(env, name, None)
        if isinstance(value, int) and value > 0:
            return value
    size = getattr(env, "batch_size", None)  # torchrl
    numel = getattr(size, "numel", None)
    return max(1, int(numel())) if callable(numel) else 1


clock = Clock()
"""The clock of this process."""
