"""Ledger: divides the wall time of one rank into accounts, such as env, act and update; each second counts once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from powerband.core.telemetry.phase_clock import PhaseTimes

ACCOUNTS = {
    "env": "simulators step in this process, or are sent actions",
    "env_wait": "waiting for simulators in other processes",
    "act": "the policy chooses actions",
    "store": "steps are stored in replay or rollout, episode statistics",
    "h2d": "copies between host and device",
    "sample": "batches are gathered",
    "returns": "advantages and returns",
    "update": "forward, backward, optimiser",
    "launch": "the device is idle while the host launches kernels",
    "collectives": "all-reduce between ranks, waiting for them included",
    "data_wait": "waiting for the batch loader",
    "eval": "evaluation",
    "save": "checkpoints",
    "log": "metrics, figures, console",
    "other": "time outside of all spans",
}
"""Account (category of time) -> its meaning. A training loop may add accounts with other names."""
ACCOUNT_ALIASES = {
    "step": "env",
    "rollout": "env",
    "policy": "act",
    "buffer": "store",
    "forward": "update",
    "backward": "update",
    "optimizer": "update",
    "train": "update",
    "learn": "update",
    "data": "data_wait",
    "loader": "data_wait",
    "evaluate": "eval",
    "checkpoint": "save",
    "logging": "log",
    "allreduce": "collectives",
}
"""Name that a user's loop may give to a span -> account that counts it."""


@dataclass(frozen=True)
class SpanStatistics:
    """Durations of the spans (measured intervals) of one account, a category of time such as ``env``.

    Attributes:
        count: Number of spans.
        mean_s, median_s, p99_s, worst_s: Mean, median, 99th percentile and maximum in seconds.
    """

    count: int
    mean_s: float
    median_s: float
    p99_s: float
    worst_s: float


@dataclass(frozen=True)
class Ledger:
    """Wall time of one rank over one window, divided into accounts (categories of time).

    Attributes:
        wall_s: Length of the window in seconds.
        seconds: Account -> seconds; they sum to `wall_s`.
        spans: Account -> durations of its spans (measured intervals).
        device: Account -> seconds of device time (CUDA only).
        cpu_s: Processor seconds of all threads of this process.
        thread_s: Processor seconds of the thread of the training loop.
        launch: Account -> its seconds in which the device waited for launches; they count as the account ``launch``.
    """

    wall_s: float
    seconds: dict[str, float]
    spans: dict[str, SpanStatistics] = field(default_factory=dict)
    device: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    thread_s: float = 0.0
    launch: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_phases(cls, phases: PhaseTimes, kernels: Mapping[str, float] | None = None) -> Ledger:
        """Creates a ledger from the times of a phase clock.

        Args:
            phases: Reading of a `PhaseClock`, which assigns each second of the loop to one account.
            kernels: Account whose work runs on the device -> share of its time in which the device ran a kernel, 0 to 1
                (CUDA). The remaining host time becomes the account ``launch``. None if it was not measured.
        """
        seconds: dict[str, float] = {}
        device: dict[str, float] = {}
        spans: dict[str, SpanStatistics] = {}
        for name, spent in phases.host.items():
            account = ACCOUNT_ALIASES.get(name, name)
            seconds[account] = seconds.get(account, 0.0) + spent
            if name in phases.device:
                device[account] = device.get(account, 0.0) + phases.device[name]
            count = phases.counts.get(name, 0)
            figures = SpanStatistics(
                count,
                phases.mean_s(name),
                phases.quantile_s(name, 0.5),
                phases.quantile_s(name, 0.99),
                phases.worst_s.get(name, 0.0),
            )
            if count and (account not in spans or _total(figures) > _total(spans[account])):
                spans[account] = figures  # of several names for one account, the one with the most time represents it
        ledger = cls(phases.wall_s, seconds, spans, device, phases.cpu_s, phases.thread_s)
        return ledger.by_device(kernels) if kernels else ledger

    def by_device(self, kernels: Mapping[str, float]) -> Ledger:
        """Returns the ledger with the account ``launch``: the time of accounts in which the device waited for the host.

        Args:
            kernels: Account whose work runs on the device -> share of its time in which the device ran a kernel.
        """
        launch = {name: (1 - share) * self.seconds[name] for name, share in kernels.items() if name in self.seconds}
        seconds = {name: spent - launch.get(name, 0.0) for name, spent in self.seconds.items()}
        if launch:
            seconds["launch"] = sum(launch.values())
        return replace(self, seconds=seconds, launch=launch)

    def by_host(self) -> Ledger:
        """Returns the ledger without the account ``launch``: its time belongs to the accounts that launched."""
        seconds = {name: spent + self.launch.get(name, 0.0) for name, spent in self.seconds.items() if name != "launch"}
        return replace(self, seconds=seconds, launch={})

    def share(self, *accounts: str) -> float:
        """Returns the share of the wall time in `accounts` together, 0 to 1."""
        return sum(self.seconds.get(name, 0.0) for name in accounts) / self.wall_s if self.wall_s > 0 else 0.0

    def mean_s(self, account: str) -> float:
        """Returns the mean seconds per span (measured interval) of an account; 0 if it has no spans."""
        return self.spans[account].mean_s if account in self.spans else 0.0

    def each_s(self, account: str, count: int) -> float:
        """Returns the mean seconds per span of an account, or its seconds divided by `count`.

        A script has no spans for accounts that come from samples, and spans for parts of others, such as the backward
        pass of an update.

        Args:
            account: Account (category of time).
            count: Number of steps or updates, which decides if the spans cover less than 90 % of the account.
        """
        spans, seconds = self.spans.get(account), self.seconds.get(account, 0.0)
        if not count or (spans and spans.count * spans.mean_s >= 0.9 * seconds):
            return self.mean_s(account)
        return seconds / count

    def table(self) -> str:
        """Returns the ledger as an aligned text table, the largest account first, without empty accounts."""
        lines = [
            f"{'account':<12}{'seconds':>9}{'share':>8}{'spans':>9}{'mean':>10}{'median':>10}{'worst':>10}  meaning"
        ]
        for name in sorted(self.seconds, key=self.seconds.__getitem__, reverse=True):
            if self.seconds[name] < 5e-5 * self.wall_s and name != "other":
                continue
            spans = self.spans.get(name)
            times = (spans.mean_s, spans.median_s, spans.worst_s) if spans else ()
            columns = "".join(f"{duration(s):>10}" for s in times) if spans else " " * 30
            lines.append(
                f"{name:<12}{self.seconds[name]:>9.3f}{self.share(name):>8.1%}{spans.count if spans else '':>9}"
                f"{columns}  {ACCOUNTS.get(name, '')}".rstrip()
            )
        lines.append(
            f"{'wall':<12}{self.wall_s:>9.3f}{'':>8}{'':>9}  processor: {self.cpu_s / max(self.wall_s, 1e-9):.2f} cores"
            f", of which the loop's thread {self.thread_s / max(self.wall_s, 1e-9):.2f}"
        )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns the ledger as a JSON value: its fields by name, with the durations of the spans as dicts."""
        names = ("count", "mean_s", "median_s", "p99_s", "worst_s")
        spans = {key: {name: getattr(value, name) for name in names} for key, value in self.spans.items()}
        rest = {"device": self.device, "cpu_s": self.cpu_s, "thread_s": self.thread_s, "launch": self.launch}
        return {"wall_s": self.wall_s, "seconds": self.seconds, "spans": spans, **rest}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Ledger:
        """Restores a ledger from the result of `to_dict`."""
        spans = {name: SpanStatistics(**figures) for name, figures in saved["spans"].items()}
        names = ("device", "cpu_s", "thread_s", "launch")
        return cls(saved["wall_s"], saved["seconds"], spans, *(saved[name] for name in names))


def _total(figures: SpanStatistics) -> float:
    return figures.count * figures.mean_s


def duration(seconds: float) -> str:
    """Formats seconds with a suitable unit: 12.3 us, 4.56 ms, 7.89 s."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
