"""Console: prints the start banner and live progress with rate, time left and idle share; also writes ``train.log``."""

from __future__ import annotations

import contextlib
import os
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
"""Share of idle time in the wall time from which a line shows it."""
COLUMNS = 120
"""Largest width of a plain line, in characters. Entries that do not fit are omitted from the right."""
BAR_COLUMNS = 31
"""Columns of the live bar and its percentage, before the text."""
PLAIN_S = 10.0
"""Seconds between two progress lines without a terminal."""


class Console:
    """Shows the messages and the progress of a run to its user, and writes them to ``train.log``.

    A terminal shows one live line with a bar. Other outputs, and `train.log`, get one plain line per log interval. If
    the terminal is closed, or nobody reads the output any more, the run goes on, and writes to `train.log` only.

    Args:
        pace: Estimates the spent share of the budget, in steps or time, and the time left.
        log: Path of ``train.log``.
        enabled: False disables all output, as on ranks other than rank 0.
    """

    def __init__(self, pace: TimeLeftEstimator, log: Path, enabled: bool = True) -> None:
        self.pace, self.enabled = pace, enabled
        self._log = log.open("a", encoding="utf-8") if enabled else None
        self._live: Any = None
        self._task: Any = None

    def banner(self, rows: dict[str, str]) -> None:
        """Prints one line per entry of `rows` (label -> text), with the texts aligned."""
        width = max(map(len, rows), default=0)
        for name, value in rows.items():
            self.note(f"{name:<{width}}  {value}")

    def note(self, text: str) -> None:
        """Prints `text` above the live progress line and writes it to ``train.log``."""
        if not self.enabled:
            return
        self._write(text)
        with self._output():
            if self._live is not None:
                self._live.console.print(text, markup=False, highlight=False)
            else:
                print(text, flush=True)

    def estimate(self, first: FirstRate, env_steps: int, elapsed_s: float) -> None:
        """Prints how long the rest of the budget takes at the first measured rate.

        Args:
            first: The first measured rate, in environment steps and updates per second.
            env_steps: Environment steps so far, over all ranks.
            elapsed_s: Seconds of training so far.
        """
        pace = self.pace
        if env_steps >= pace.env_steps:
            return  # the budget is already spent
        left_s = (pace.env_steps - env_steps) / first.rate
        figures = f"{si_text(first.rate)} steps/s, {si_text(first.updates)} updates/s over {first.seconds:.1f} s"
        if pace.time_limit_s and pace.time_limit_s - elapsed_s < left_s:
            reached = env_steps + (pace.time_limit_s - elapsed_s) * first.rate
            limit = f"the time limit of {pace.time_limit_s:g} s"
            self.note(f"estimate: {figures}; {limit} allows {si_text(reached)} env steps")
            return
        extra = " and ".join({"eval": "evaluations", "save": "checkpoints"}[n] for n, k in pace.intervals.items() if k)
        left = duration_text(left_s) + (f" plus {extra}" if extra else "")
        self.note(f"estimate: {figures}; {si_text(pace.env_steps - env_steps)} env steps take {left}")

    def progress(self, env_steps: int, elapsed_s: float, line: dict[str, Any]) -> None:
        """Shows the progress at the end of a log interval.

        Args:
            env_steps: Environment steps so far, over all ranks.
            elapsed_s: Seconds of training so far.
            line: Metrics of the interval by name, with ``charts/SPS`` (environment steps per second).
        """
        if not self.enabled:
            return
        share, left_s = self.pace.share(env_steps, elapsed_s), self.pace.left_s(env_steps, elapsed_s)
        facts = [f"{si_text(env_steps)} steps", f"{si_text(line['charts/SPS'])} steps/s"]
        facts += [f"left {duration_text(left_s)}"] if left_s is not None else []
        idle = idle_share(line)
        if idle and idle[0] >= SHOWN_IDLE_SHARE:
            facts.append(f"idle {idle[0]:.0%} {idle[1]}".rstrip())
        facts += [f"{name} {line[tag]:.3g}" for tag, name in SHOWN.items() if isinstance(line.get(tag), float)]
        text = fit_columns(f"[{duration_text(elapsed_s)}] {share:4.0%}", facts, COLUMNS)
        self._write(text)
        with self._output():
            if sys.stdout.isatty():
                self._bar(share, facts)
            else:
                print(text, flush=True)

    def close(self, text: str) -> None:
        """Ends the live progress line, prints `text` unless it is empty, and closes ``train.log``."""
        with self._output():
            if self._live is not None:
                self._live.stop()
        self._live = None
        if text:
            self.note(text)
        if self._log is not None:
            self._log.close()
            self._log = None

    @contextlib.contextmanager
    def _output(self) -> Iterator[None]:
        """Context that prints. After an error of the output, such as that of a closed terminal, stdout discards all."""
        try:
            yield
        except OSError:
            if self._live is not None:
                with contextlib.suppress(OSError):
                    self._live.stop()  # also restores the stdout that it has replaced
            self._live = None
            sys.stdout = open(os.devnull, "w")  # the text left in the broken one would fail again at exit

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
    """Joins `start` and the first of the short texts `facts`, as many as fit into `columns` characters."""
    text = start
    for fact in facts:
        longer = f"{text}  {fact}" if text else fact
        if len(longer) > columns:
            break
        text = longer
    return text


@contextlib.contextmanager
def budget_progress_bar(seconds: float) -> Iterator[Callable[[str, float], None]]:
    """Context that shows a progress bar on stderr for work with a time budget.

    Args:
        seconds: The time budget, from which the time left is computed.

    Yields:
        Function ``(text, share)`` that shows `text` and the spent share of the budget, 0 to 1.
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

        def report(text: str, share: float) -> None:
            left = f"{text}; {duration_text(max(0.0, 1 - share) * seconds)} left"
            bar.update(task, completed=min(1.0, share), description=left)
            if not console.is_terminal:
                print(f"{share:>4.0%}  {text}", file=sys.stderr, flush=True)

        yield report


@contextlib.contextmanager
def count_progress_bar(label: str, total: int, unit: str) -> Iterator[Callable[[float], None]]:
    """Context that shows a progress bar on stderr, with rate and time left, for work on a number of items.

    Args:
        label: Name of the work; an empty label shows nothing.
        total: Number of items.
        unit: Name of the items, in plural.

    Yields:
        Function that takes the number of finished items and updates the bar.
    """
    if not label:
        yield lambda done: None
        return
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, started = RichConsole(stderr=True), time.monotonic()
    columns = (
        TextColumn(label),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn(f"{{task.fields[rate]}} {unit}/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, printed_at = bar.add_task("", total=total, rate=""), started

        def report(done: float) -> None:
            nonlocal printed_at
            now = time.monotonic()
            rate = done / max(now - started, 1e-9)
            bar.update(task, completed=done, rate=si_text(rate))
            if not console.is_terminal and now - printed_at >= PLAIN_S:
                printed_at, left = now, f", {duration_text((total - done) / rate)} left" if done else ""
                print(
                    f"{label}: {int(done)} of {total}, {si_text(rate)} {unit}/s{left}",
                    file=sys.stderr,
                    flush=True,
                )

        yield report


def si_text(value: float) -> str:
    """Formats a number with three digits and the suffix k, M or G, for example 1.23M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def duration_text(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds (1:02:03), or as minutes and seconds below one hour (2:03)."""
    rounded = round(seconds)
    hours, minutes, rest = rounded // 3600, rounded % 3600 // 60, rounded % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
