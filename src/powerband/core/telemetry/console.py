"""Console: the start banner, live progress with rate, time left and idle share, the same lines in ``train.log``."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from powerband.core.telemetry.idle_causes import idle_share
from powerband.core.telemetry.time_left import FirstRate, TimeLeftEstimator

SHOWN = {
    "charts/episodic_return": "return",
    "charts/win": "win_rate",
    "eval/return": "eval_return",
    "losses/critic": "critic_loss",
    "losses/actor": "actor_loss",
    "losses/policy": "policy_loss",
    "losses/value": "value_loss",
    "losses/entropy": "entropy",
}
SHOWN_IDLE_SHARE = 0.1
"""Idle time below this share of the wall time has no cause worth naming, and the line does not show it."""
COLUMNS = 120
"""A plain line is no longer; what does not fit is left out from the right."""
BAR_COLUMNS = 31
"""Columns of the live bar and its percentage, before the text."""
PLAIN_S = 10.0
"""Seconds between two lines about work that counts, where there is no terminal."""


class Console:
    """What a person sees of a run; silent on ranks that do not lead.

    A terminal gets one live line with a bar; elsewhere every log interval is one plain line. `train.log` has the plain
    lines in either case.

    Args:
        pace: The run's: share of the budget and time left.
        log: Path of ``train.log``.
        enabled: False is silent.
    """

    def __init__(self, pace: TimeLeftEstimator, log: Path, enabled: bool = True) -> None:
        self.pace, self.enabled = pace, enabled
        self._log = log.open("a", encoding="utf-8") if enabled else None
        self._live: Any = None
        self._task: Any = None

    def banner(self, rows: dict[str, str]) -> None:
        """Prints what the run is, aligned."""
        width = max(map(len, rows), default=0)
        for name, value in rows.items():
            self.note(f"{name:<{width}}  {value}")

    def note(self, text: str) -> None:
        """Prints a line, above the live one."""
        if not self.enabled:
            return
        self._write(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def estimate(self, first: FirstRate, env_steps: int, elapsed_s: float) -> None:
        """Says how long the budget will take at the first rate measured, before the first log line may be due."""
        pace = self.pace
        if env_steps >= pace.env_steps:
            return  # it is spent already
        left_s = (pace.env_steps - env_steps) / first.rate
        figures = f"{si_text(first.rate)} steps/s, {si_text(first.updates)} updates/s over {first.seconds:.1f} s"
        if pace.time_limit_s and pace.time_limit_s - elapsed_s < left_s:
            reached = env_steps + (pace.time_limit_s - elapsed_s) * first.rate
            self.note(f"estimate: {figures}; the {pace.time_limit_s:g} s will do for {si_text(reached)} env steps")
            return
        apart = " and ".join({"eval": "evaluations", "save": "checkpoints"}[n] for n, k in pace.intervals.items() if k)
        beside = f", and what {apart} take" if apart else ""
        self.note(
            f"estimate: {figures}; {si_text(pace.env_steps - env_steps)} env steps take {duration_text(left_s)}{beside}"
        )

    def progress(self, env_steps: int, elapsed_s: float, line: dict[str, Any]) -> None:
        """Shows where the run stands at the end of a log interval."""
        if not self.enabled:
            return
        share, left_s = self.pace.share(env_steps, elapsed_s), self.pace.left_s(env_steps, elapsed_s)
        facts = [f"{si_text(env_steps)} steps", f"{si_text(line['charts/SPS'])} steps/s"]
        facts += [f"left {duration_text(left_s)}"] if left_s is not None else []
        waits = idle_share(line)
        if waits and waits[0] >= SHOWN_IDLE_SHARE:
            facts.append(f"idle {waits[0]:.0%} {waits[1]}".rstrip())
        facts += [f"{name} {line[tag]:.3g}" for tag, name in SHOWN.items() if isinstance(line.get(tag), float)]
        text = fit_columns(f"[{duration_text(elapsed_s)}] {share:4.0%}", facts, COLUMNS)
        self._write(text)
        if sys.stdout.isatty():
            self._bar(share, facts)
        else:
            print(text, flush=True)

    def close(self, text: str) -> None:
        """Ends the live line and prints a last word."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if text:
            self.note(text)
        if self._log is not None:
            self._log.close()
            self._log = None

    def _bar(self, share: float, facts: list[str]) -> None:
        if self._live is None:
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
            self._live = Progress(*columns, refresh_per_second=4)
            self._task = self._live.add_task("", total=1.0)
            self._live.start()
        width = self._live.console.width - BAR_COLUMNS
        self._live.update(self._task, completed=share, description=fit_columns("", facts, width))

    def _write(self, text: str) -> None:
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._log.flush()


def fit_columns(start: str, facts: list[str], columns: int) -> str:
    """`start` and as many of `facts`, from the first on, as `columns` have room for."""
    text = start
    for fact in facts:
        longer = f"{text}  {fact}" if text else fact
        if len(longer) > columns:
            break
        text = longer
    return text


@contextlib.contextmanager
def budget_progress_bar(seconds: float) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr for work that knows the share of its budget that is spent; yields what to tell it.

    Args:
        seconds: The budget, from which the time left is told.
    """
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = RichConsole(stderr=True)
    columns = (
        BarColumn(20),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)

        def tell(what: str, share: float) -> None:
            left = f"{what}; {duration_text(max(0.0, 1 - share) * seconds)} left"
            bar.update(task, completed=min(1.0, share), description=left)
            if not console.is_terminal:
                print(f"{share:>4.0%}  {what}", file=sys.stderr, flush=True)

        yield tell


@contextlib.contextmanager
def count_progress_bar(what: str, total: int, unit: str) -> Iterator[Callable[[float], None]]:
    """A bar on stderr with rate and time left for work that counts; yields what to tell the number that is done.

    Args:
        what: What is being done; empty shows nothing.
        total: How many there are.
        unit: What is counted.
    """
    if not what:
        yield lambda done: None
        return
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, started = RichConsole(stderr=True), time.monotonic()
    columns = (
        TextColumn(what),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn(f"{{task.fields[rate]}} {unit}/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, told = bar.add_task("", total=total, rate=""), started

        def tell(done: float) -> None:
            nonlocal told
            now = time.monotonic()
            rate = done / max(now - started, 1e-9)
            bar.update(task, completed=done, rate=si_text(rate))
            if not console.is_terminal and now - told >= PLAIN_S:
                told, left = now, duration_text((total - done) / max(rate, 1e-9))
                print(
                    f"{what}: {int(done)} of {total}, {si_text(rate)} {unit}/s, {left} left",
                    file=sys.stderr,
                    flush=True,
                )

        yield tell


def si_text(value: float) -> str:
    """A number with three digits and k, M or G: 1.23M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def duration_text(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
