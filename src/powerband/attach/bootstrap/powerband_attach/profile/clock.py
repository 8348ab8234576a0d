"""Clock: divides the time of one thread into accounts; each nanosecond belongs to exactly one of them.

The time of an inner span is not part of the outer span, and the time outside of all spans belongs to ``other``.

The thread that trains only notes when an account begins and ends. The sampler's thread adds these events up, many at
once. Between two spans a network evicts the caches, so each object and each Python function that a span needs costs
some tenths of a microsecond. For the same reason the functions of `timed` note their events without calling `enter` and
`leave`, and the steps of an environment are counted with its events.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from numbers import Integral
from threading import get_ident
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
FOLD_S = 1.0
"""Longest wait in seconds for another thread that adds up the events, for example if a signal interrupts it."""


class Account:
    """Times of one account, or of a part of it that has the same name.

    Attributes:
        name: Name of the account.
        ns: Nanoseconds of the spans before `Clock.since`, without inner spans.
        bins: Histogram of the durations of the spans, which include inner spans.
        longest: Longest duration in nanoseconds.
    """

    __slots__ = ("name", "ns", "bins", "longest")

    def __init__(self, name: str) -> None:
        self.name = name
        self.clear()

    def clear(self) -> None:
        """Discards all times."""
        self.ns = self.longest = 0
        self.bins = [0] * BINS

    @property
    def spans(self) -> int:
        """Number of spans that have ended."""
        return sum(self.bins)

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what a copy of a timed function has in place of the account, which it never uses."""
        return str, (self.name,)


class Clock:
    """Times of one thread.

    Attributes:
        thread: Identifier of the thread, the one that trains.
        events: What the thread has noted and `fold` has not added up yet: a time in nanoseconds, and what happened, in
            turns. That is the account that begins, or None for the end of the innermost span, or an entry of
            `env_calls` if the span was a step of that environment.
        note: Adds a time and what happened to `events`. One call adds both, because a signal between two calls would
            shift all pairs.
        top: Account of the innermost open span, among the events that were added up; ``other`` outside of all.
        optimizer_open: Whether the span of an optimiser's step is open.
        accounts: All accounts, in the order in which they were made. Several may have one name.
        since: Time of the last event that was added up.
        env_depth: Number of open environment calls, so that nested wrappers count once.
        render_depth, render_ns: Number of open calls that draw an image of an environment, and their nanoseconds, which
            are a part of the time of the environments or of another account.
        env_steps: Environment steps, among the events that were added up; a call of a vector environment counts all of
            its environments.
        env_calls: Identity of an environment -> [its class, calls of ``step``, environments in one call].
        env_entry, env_id: Entry of `env_calls` of the environment that has stepped last, and its identity.
        earlier_envs: Name of a class -> environment steps and largest number of environments, of those that left
            `env_calls`.
        optimizers: Identity of an optimiser -> number of its steps.
        recorded, trace: Spans while they are recorded, and afterwards: account, start, end.
        kept: All spans while the kernel probe needs them: account, start, end. None keeps none.
        marks: Progress of the script while a trial needs it: (updates, environment steps, time), at most 200 per
            second. None records no progress.
        after_mark: Function that is called after each step while a trial records progress; None calls nothing.
        previous: Account of the last span that has ended, among the events that were added up.
        at_next_span: Function that is called once, with the account of the next span, when that begins. None calls
            nothing.
    """

    def __init__(self) -> None:
        self.marks: list[tuple[int, int, int]] | None = None
        self.after_mark: Callable[[], None] | None = None
        self.accounts = [Account(OTHER)]
        self.restart()

    def account(self, name: str) -> Account:
        """Returns a new account, whose times `read` adds to those of other accounts with this name."""
        account = Account(name)
        self.accounts.append(account)
        return account

    def restart(self) -> None:
        """Discards all times, and measures the present thread from now on."""
        self.thread = get_ident()
        for account in self.accounts:
            account.clear()
        self.top = self.accounts[0]
        self.events: list[Any] = []
        self.note = self.events.extend
        self.optimizer_open = False
        self._open: list[tuple[Account, int]] = []
        self._folding = _thread.allocate_lock()
        self.env_depth = self.render_depth = self.render_ns = 0
        self.env_steps = 0
        self.optimizers: dict[int, int] = {}
        self.env_calls: dict[int, list[Any]] = {}
        self.env_entry: list[Any] | None = None
        self.env_id = 0
        self.earlier_envs: dict[str, tuple[int, int]] = {}
        self.previous = OTHER
        self.at_next_span: Callable[[str], None] | None = None
        self.recorded: list[tuple[str, int, int]] | None = None
        self.trace: list[tuple[str, int, int]] = []
        self.kept: list[tuple[str, int, int]] | None = None
        self.since = self.marked_ns = perf_counter_ns()
        self.last_mark: tuple[int, int, int] | None = None
        if self.marks:
            self.marks = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what a copy of a timed function has in place of the clock: no thread is that of the copy."""
        return SimpleNamespace, (), {"thread": None, "env_depth": 0, "render_depth": 0}

    def select_env(self, env: Any) -> None:
        """Makes `env` the environment whose steps are counted from now on."""
        calls = self.env_calls.get(id(env))
        if calls is None or calls[0] is not type(env):
            calls = self._add_env(env)
        self.env_entry, self.env_id = calls, id(env)

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

    def mark_env_step(self, marks: list[tuple[int, int, int]]) -> None:
        """Adds a mark of the progress, right after an environment step."""
        self.fold()
        self.mark(marks)

    def mark(self, marks: list[tuple[int, int, int]]) -> None:
        """Adds a mark of the progress, right after an optimiser step or an environment step.

        The last step before a pause is a mark too, so that the count during the pause is known.
        """
        now_ns = perf_counter_ns()
        now = (self.updates, self.env_steps, now_ns)
        if now_ns - self.marked_ns >= MARK_NS:
            if self.last_mark is not None and self.last_mark[2] != self.marked_ns:
                marks.append(self.last_mark)
            marks.append(now)
            self.marked_ns = now_ns
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

    def enter(self, account: Account) -> None:
        """Opens a span of an account."""
        if self.at_next_span is not None:
            self.announce(account)
        self.note((perf_counter_ns(), account))

    def leave(self) -> None:
        """Closes the innermost span."""
        self.note((perf_counter_ns(), None))

    def announce(self, account: Account) -> None:
        """Calls the function `at_next_span`, once."""
        call, self.at_next_span = self.at_next_span, None
        if call is not None:
            call(account.name)

    def fold(self) -> None:
        """Adds up the events that the thread has noted. Any thread may call it."""
        if not self._folding.acquire(True, FOLD_S):
            return
        try:
            events = self.events[:]  # the thread may note more of them meanwhile
            del self.events[: len(events)]
            self._add_up(events)
        finally:
            self._folding.release()

    def _add_up(self, events: list[Any]) -> None:
        top, since, opened = self.top, self.since, self._open
        pairs = iter(events)
        for now in pairs:
            event = next(pairs)
            top.ns += now - since
            since = now
            if isinstance(event, Account):
                opened.append((top, now))
                top = event
                continue
            if event is not None:
                event[1] += 1
                self.env_steps += event[2]
            if not opened:  # an interrupt kept the start from being noted, or the process was forked inside of the span
                continue
            duration = now - opened[-1][1]
            top.bins[(duration * duration).bit_length()] += 1
            if duration > top.longest:
                top.longest = duration
            self.previous = top.name
            kept, recorded = self.kept, self.recorded
            if kept is not None:
                kept.append((top.name, opened[-1][1], now))
            if recorded is not None:
                recorded.append((top.name, opened[-1][1], now))
                if len(recorded) >= SPANS:
                    self.recorded, self.trace = None, recorded
            top, _ = opened.pop()
        self.top, self.since = top, since

    def spent_ns(self, name: str) -> int:
        """Returns the nanoseconds of an account up to the last event."""
        self.fold()
        return sum(each.ns for each in self.accounts if each.name == name)

    @property
    def has_spans(self) -> bool:
        """Whether any span has begun, among the events that were added up."""
        return bool(self._open) or any(each.longest for each in self.accounts)

    def read(self) -> dict[str, Any]:
        """Returns the times since `restart`, as JSON values. The open span counts up to now."""
        self.fold()
        top, now = self.top, perf_counter_ns()
        ns: dict[str, int] = {}
        bins: dict[str, dict[int, int]] = {}
        worst: dict[str, int] = {}
        for each in list(self.accounts):
            if each.ns or each.longest or each is top or each.name == OTHER:
                ns[each.name] = ns.get(each.name, 0) + each.ns + (now - self.since if each is top else 0)
                if each.name != OTHER:
                    counts = bins.setdefault(each.name, {})
                    for index, count in enumerate(each.bins):
                        if count:
                            counts[index] = counts.get(index, 0) + count
                    worst[each.name] = max(worst.get(each.name, 0), each.longest)
        envs = self.env_classes()
        return {
            "now_ns": now,
            "ns": ns,
            "counts": {name: sum(each.values()) for name, each in bins.items()},
            "worst_ns": worst,
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
    try:
        for name in ("num_envs", "env_num"):
            value = getattr(env, name, None)
            if isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0:
                return int(value)
        size = getattr(env, "batch_size", None)  # torchrl
        numel = getattr(size, "numel", None)
        return max(1, int(numel())) if callable(numel) else 1
    except Exception:  # the user's `__getattr__` may raise another error than AttributeError
        return 1


clock = Clock()
"""The clock of this process."""
env_account = clock.account("env")
