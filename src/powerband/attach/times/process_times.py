"""ProcessTimes: the ledger of one process of a script in the measured window, and where in the code its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from powerband.attach.processes.records import Record
from powerband.attach.times.device_times import DeviceTimes, device_times
from powerband.core.machine.device import cores
from powerband.core.telemetry.phase_clock import BINS, PhaseTimes
from powerband.tune.measure.ledger import ACCOUNT_ALIASES, Ledger

IDLE = "idle"
"""Account of samples that wait for another process outside of an environment; the ledger counts them as ``other``."""
WAITS = ("env_wait", "data_wait", "collectives")
"""Accounts in which the main thread waits for another process."""


@dataclass(frozen=True)
class Line:
    """A place in the code and its time.

    Attributes:
        account: Account (category of time) of the ledger.
        where: Line of the user's code as ``path:line``, or of a library if the user's code is not involved.
        caller: Line of the user's code that called it; "" if there is none.
        library: Innermost line of a library below `where`; "" if there is none.
        seconds: Time in the window.
    """

    account: str
    where: str
    caller: str
    library: str
    seconds: float


@dataclass(frozen=True)
class ProcessTimes:
    """Times of one process in the window.

    Attributes:
        record: What the process has written.
        ledger: Wall time of its main thread by account.
        parts: Part of the update (forward, backward, optimizer) -> seconds.
        env_steps, env_calls: Environment steps, and calls of ``step`` of the outermost environment.
        num_envs: Number of environments in one call.
        updates, optimizer_steps: Steps of the optimiser that steps most often, and steps of all optimisers.
        envs: Class of an outermost environment -> environment steps since the start of the process.
        queue_s: Seconds in which the main thread was ready to run and had no core.
        render_s: Seconds in which environments drew images.
        device: What the GPU did; None without one, or if its kernels were not recorded.
        lines: Places in the code, the one with the most time first.
    """

    record: Record
    ledger: Ledger
    parts: dict[str, float]
    env_steps: int
    env_calls: int
    num_envs: int
    updates: int
    optimizer_steps: int
    envs: dict[str, int]
    queue_s: float
    render_s: float = 0.0
    device: DeviceTimes | None = None
    lines: list[Line] = field(default_factory=list)

    @property
    def env_s(self) -> float:
        """Seconds per environment step in this process."""
        seconds = self.ledger.seconds.get("env", 0.0) + self.ledger.seconds.get("env_wait", 0.0)
        return seconds / self.env_steps if self.env_steps else 0.0

    @property
    def held_up_s(self) -> float:
        """Seconds in which other threads of the process held the interpreter lock or the core of the main thread.

        The main thread did not run and waited for no other process, while other threads ran. With more threads of torch
        than cores it is 0, because those threads hold each other up.
        """
        optimizers = self.record.of_kind("optimizer")
        if optimizers and optimizers[0]["threads"] > cores():
            return 0.0
        ledger = self.ledger
        waited_s = sum(ledger.seconds.get(name, 0.0) for name in WAITS)
        return max(0.0, min(ledger.wall_s - ledger.thread_s - waited_s, ledger.cpu_s - ledger.thread_s))

    @property
    def logger_share(self) -> float:
        """Share of the wall time that a logger costs: its calls, and the time for which it holds up everything else.

        TensorBoard, W&B and MLflow write in threads of their own.
        """
        calls = self.ledger.share("log")
        return calls + (1 - calls) * self.held_up_s / self.ledger.wall_s


def process_times(record: Record, start_ns: int, end_ns: int) -> ProcessTimes | None:
    """Returns the times of a process between two times; None if it wrote fewer than two lines in between."""
    times = [line for line in record.of_kind("times") if start_ns <= line["now_ns"] <= end_ns]
    if len(times) < 2 or times[-1]["now_ns"] <= times[0]["now_ns"]:
        return None
    first, last = times[0], times[-1]
    wall_s = (last["now_ns"] - first["now_ns"]) * 1e-9
    host, lines = _divided(_difference(first["ns"], last["ns"], 1e-9), times[1:])
    bins = {
        name: [counts.get(str(i), 0) - first["bins"].get(name, {}).get(str(i), 0) for i in range(BINS)]
        for name, counts in last["bins"].items()
    }
    phases = PhaseTimes(
        wall_s,
        host,
        {},
        last["cpu_s"] - first["cpu_s"],
        {name: sum(counts) for name, counts in bins.items() if name in host},
        last["thread_s"] - first["thread_s"],
        {name: _worst_s(counts, last["worst_ns"].get(name, 0)) for name, counts in bins.items()},
        bins,
    )
    updates, env_steps = (last[name] - first[name] for name in ("updates", "env_steps"))
    ledger, device = device_times(Ledger.from_phases(phases), record, updates, env_steps)
    return ProcessTimes(
        record,
        ledger,
        {name: host[name] for name in ("forward", "backward", "optimizer") if name in host},
        env_steps,
        last["counts"].get("env", 0) - first["counts"].get("env", 0),
        last["num_envs"],
        updates,
        last["optimizer_steps"] - first["optimizer_steps"],
        last["envs"],
        last["queue_s"] - first["queue_s"],
        (last.get("render_ns", 0) - first.get("render_ns", 0)) * 1e-9,
        device,
        lines,
    )


def _worst_s(counts: Sequence[int], worst_ns: int) -> float:
    """Returns the longest span of the window in seconds, rounded up to the end of its bin, a factor of 1.4 at most.

    Args:
        counts: Number of spans of the window in each bin.
        worst_ns: Longest span since the start of the process, which may lie before the window.
    """
    highest = max((index for index, count in enumerate(counts) if count), default=-1)
    return float(min(2.0 ** (highest / 2), worst_ns)) * 1e-9 if highest >= 0 else 0.0


def _difference(first: dict[str, int], last: dict[str, int], unit: float) -> dict[str, float]:
    return {name: (value - first.get(name, 0)) * unit for name, value in last.items()}


def _divided(spans: dict[str, float], times: Sequence[dict[str, Any]]) -> tuple[dict[str, float], list[Line]]:
    """Divides the time of each kind of span among accounts and lines, in proportion to its samples.

    Args:
        spans: Account of a span, ``other`` for the time outside of all -> seconds.
        times: Lines of the record with samples of that time.

    Returns:
        (account -> seconds, places in the code).
    """
    samples: dict[tuple[str, ...], int] = {}
    for line in times:
        for *key, count in line["samples"]:
            samples[tuple(key)] = samples.get(tuple(key), 0) + count
    totals: dict[str, int] = {}
    for (top, *_), count in samples.items():
        totals[top] = totals.get(top, 0) + count
    host: dict[str, float] = {name: 0.0 if name in totals else seconds for name, seconds in spans.items()}
    places: dict[tuple[str, ...], float] = {}
    for (top, account, *place), count in samples.items():
        seconds = spans.get(top, 0.0) * count / totals[top]
        account = "other" if account == IDLE else account
        host[account] = host.get(account, 0.0) + seconds
        key = (ACCOUNT_ALIASES.get(account, account), *place)
        places[key] = places.get(key, 0.0) + seconds
    lines = [Line(account, where or library, caller, library if where else "", seconds)
             for (account, where, caller, library), seconds in places.items()]  # fmt: skip
    return host, sorted(lines, key=lambda each: -each.seconds)
