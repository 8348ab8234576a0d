"""Console: the start banner, live progress with rate and time left, and the same lines in ``train.log``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

SHOWN = {
    "charts/episodic_return": "return",
    "charts/win": "win",
    "eval/return": "eval",
    "losses/critic": "critic",
    "losses/value": "value",
    "losses/entropy": "entropy",
}


class Console:
    """What a person sees of a run; silent on ranks that do not lead.

    A terminal gets one live line with a bar; elsewhere every log interval is one plain line. `train.log` has the plain
    lines in either case.

    Args:
        env_steps: Budget of environment steps.
        time_limit_s: Budget of seconds, 0 for none.
        log: Path of ``train.log``.
        enabled: False is silent.
    """

    def __init__(self, env_steps: int, time_limit_s: float, log: Path, enabled: bool = True) -> None:
        self.env_steps, self.time_limit_s, self.enabled = env_steps, time_limit_s, enabled
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

    def progress(self, env_steps: int, elapsed_s: float, line: dict[str, Any]) -> None:
        """Shows where the run stands at the end of a log interval."""
        if not self.enabled:
            return
        share, left_s = self.remaining(env_steps, elapsed_s)
        shown = [f"{name} {line[tag]:.3g}" for tag, name in SHOWN.items() if isinstance(line.get(tag), float)]
        busiest = max((tag for tag in line if tag.startswith("perf/share/")), key=line.get, default="")
        if busiest:
            shown.append(f"most time: {busiest.removeprefix('perf/share/')} {line[busiest]:.0%}")
        facts = f"{si(line['charts/SPS'])} steps/s  left {clock(left_s)}  {'  '.join(shown)}"
        text = f"[{clock(elapsed_s)}] {share:4.0%}  {si(env_steps)} steps  {facts}"
        self._write(text)
        if sys.stdout.isatty():
            self._bar(share, f"{si(env_steps)} steps  {facts}")
        else:
            print(text, flush=True)

    def remaining(self, env_steps: int, elapsed_s: float) -> tuple[float, float]:
        """Share of the budget that is spent, and the seconds that are left at the pace so far."""
        share = env_steps / max(self.env_steps, 1)
        if self.time_limit_s > 0:
            share = max(share, elapsed_s / self.time_limit_s)
        share = min(max(share, 1e-9), 1.0)
        return share, elapsed_s * (1 - share) / share

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

    def _bar(self, share: float, facts: str) -> None:
        if self._live is None:
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
            self._live = Progress(*columns, refresh_per_second=4)
            self._task = self._live.add_task("", total=1.0)
            self._live.start()
        self._live.update(self._task, completed=share, description=facts)

    def _write(self, text: str) -> None:
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._log.flush()


def si(value: float) -> str:
    """A number with three digits and k, M or G: 1.23M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
