"""Ledger: every second of a rank's wall time in exactly one account, and how long the spans of an account were."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from powerband.core.phases import Phases

ACCOUNTS = {
    "env": "simulators step in this process, or are told to",
    "env_wait": "waiting for simulators in other processes",
    "act": "the policy chooses actions",
    "store": "a step goes into replay or rollout, episode figures",
    "h2d": "copies between host and device",
    "sample": "batches are gathered",
    "returns": "advantages and returns",
    "update": "forward, backward, optimiser",
    "launch": "the host starts kernels and the device has nothing to do",
    "collectives": "all-reduce between ranks, waiting for them included",
    "data_wait": "waiting for a data loader",
    "eval": "evaluation",
    "save": "checkpoints",
    "log": "metrics, figures, console",
    "other": "what no span covers",
}
"""Account -> what its seconds are. A loop's own names may stand beside them."""
NAMES = {
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
"""Names that people give their spans -> the account they mean."""


@dataclass(frozen=True)
class SpanFigures:
    """How long the spans of one account were, in seconds."""

    count: int
    mean_s: float
    median_s: float
    p99_s: float
    worst_s: float

    @property
    def tail(self) -> float:
        """The longest span in medians; 1 where all are alike, 0 where there is none."""
        return self.worst_s / self.median_s if self.median_s > 0 else 0.0


@dataclass(frozen=True)
class Ledger:
    """Accounts of one rank over one window.

    Attributes:
        wall_s: Seconds of the window.
        seconds: Account -> seconds; they sum to `wall_s`.
        spans: Account -> durations of its spans.
        device: Account -> seconds of device time (CUDA only).
        cpu_s: Processor seconds of this process, all threads.
        thread_s: Processor seconds of the loop's own thread.
    """

    wall_s: float
    seconds: dict[str, float]
    spans: dict[str, SpanFigures] = field(default_factory=dict)
    device: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    thread_s: float = 0.0

    @classmethod
    def of(cls, phases: Phases, kernel_active: float | None = None) -> Ledger:
        """The ledger of a clock's accounts.

        Args:
            phases: What the clock read.
            kernel_active: Share of act and update in which the device ran a kernel, where it was measured (CUDA); the
                rest of their host time is the account ``launch``.
        """
        seconds: dict[str, float] = {}
        device: dict[str, float] = {}
        spans: dict[str, SpanFigures] = {}
        for name, spent in phases.host.items():
            account = NAMES.get(name, name)
            seconds[account] = seconds.get(account, 0.0) + spent
            if name in phases.device:
                device[account] = device.get(account, 0.0) + phases.device[name]
            count = phases.counts.get(name, 0)
            figures = SpanFigures(
                count,
                phases.mean_s(name),
                phases.quantile_s(name, 0.5),
                phases.quantile_s(name, 0.99),
                phases.worst_s.get(name, 0.0),
            )
            if count and (account not in spans or figures.count * figures.mean_s > _total(spans[account])):
                spans[account] = figures  # where several names are one account, its largest one speaks for it
        if kernel_active is not None:
            idle = {name: (1 - kernel_active) * seconds[name] for name in ("act", "update") if name in seconds}
            for name, spent in idle.items():
                seconds[name] -= spent
            seconds["launch"] = seconds.get("launch", 0.0) + sum(idle.values())
        return cls(phases.wall_s, seconds, spans, device, phases.cpu_s, phases.thread_s)

    def share(self, *accounts: str) -> float:
        """Share of the wall time in `accounts` together, 0 to 1."""
        return sum(self.seconds.get(name, 0.0) for name in accounts) / self.wall_s if self.wall_s > 0 else 0.0

    def mean_s(self, account: str) -> float:
        """Mean seconds of a span; 0 where there was none."""
        return self.spans[account].mean_s if account in self.spans else 0.0

    def table(self) -> str:
        """The ledger as aligned text, the largest account first; empty accounts are left out."""
        lines = [f"{'account':<12}{'seconds':>9}{'share':>8}{'spans':>9}{'mean':>10}{'median':>10}{'worst':>10}  what"]
        for name in sorted(self.seconds, key=self.seconds.get, reverse=True):
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
            f", of which this loop's thread {self.thread_s / max(self.wall_s, 1e-9):.2f}"
        )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: accounts in seconds and the durations of their spans."""
        names = ("count", "mean_s", "median_s", "p99_s", "worst_s")
        spans = {key: {name: getattr(value, name) for name in names} for key, value in self.spans.items()}
        rest = {"device": self.device, "cpu_s": self.cpu_s, "thread_s": self.thread_s}
        return {"wall_s": self.wall_s, "seconds": self.seconds, "spans": spans, **rest}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Ledger:
        """What `to_dict` gave."""
        spans = {name: SpanFigures(**figures) for name, figures in saved["spans"].items()}
        return cls(saved["wall_s"], saved["seconds"], spans, saved["device"], saved["cpu_s"], saved["thread_s"])


def _total(figures: SpanFigures) -> float:
    return figures.count * figures.mean_s


def duration(seconds: float) -> str:
    """Seconds with the unit that suits them: 12.3 us, 4.56 ms, 7.89 s."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
