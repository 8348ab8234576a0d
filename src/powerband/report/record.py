"""Record: what a run left in its folder, read once and leniently: a part that is missing or torn is left out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.core.idle import idle
from powerband.core.run_folder import process_began, process_facts
from powerband.report.curves import read_metrics, series

PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".svg")
VIDEOS = (".mp4", ".webm")


@dataclass(frozen=True)
class Record:
    """A run, from its files.

    Attributes:
        dir: The run folder.
        facts: ``run.json``: recipe, command, versions, host.
        config: The resolved configuration.
        metrics: Lines of ``metrics.jsonl``.
        evaluations: Name -> rows of ``eval-<name>.json``.
        trace: ``trace.json``, a Chrome trace; empty where none was recorded.
        processes: ``processes.json``: who writes here, and how it ended.
    """

    dir: Path
    facts: dict[str, Any]
    config: dict[str, Any]
    metrics: list[dict]
    evaluations: dict[str, list[dict]]
    trace: dict[str, Any]
    processes: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Reads a run folder.

        Raises:
            ValueError: It has no metrics, so it is no run folder, or nothing was logged yet.
        """
        folder = Path(folder)
        evaluations = {
            path.stem.removeprefix("eval-"): rows
            for path in sorted(folder.glob("eval-*.json"))
            if (rows := _json(path).get("rows"))
        }
        named = (_json(folder / name) for name in ("run.json", "config.json"))
        return cls(
            folder,
            *named,
            read_metrics(folder),
            evaluations,
            _json(folder / "trace.json"),
            _json(folder / "processes.json"),
        )

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.dir.absolute().name

    @property
    def state(self) -> str:
        """How the run stands, in a sentence."""
        if self.processes.get("ended"):
            return f"ended: {self.processes['ended']}"
        alive = living(self.processes)
        if alive is None:
            return "state unknown: its processes are on another machine, or it was made by an older version"
        return "running" if alive else "dead: its process is gone and left no last word"

    @property
    def wall_s(self) -> float:
        """Seconds of training at the last line."""
        return self.metrics[-1]["time_s"] if self.metrics else 0.0

    def mean_rate(self, counter: str = "env_steps") -> float:
        """Steps (or grad_steps) a second over the whole run."""
        return self.metrics[-1][counter] / self.wall_s if self.wall_s else 0.0

    def idle(self) -> tuple[float, str] | None:
        """Idle share of the run weighted by wall time, and its cause; None where nothing was measured."""
        sums: dict[str, float] = {}
        wall, before = 0.0, 0.0
        for line in self.metrics:
            took, before = max(line["time_s"] - before, 0.0), line["time_s"]
            for tag, value in line.items():
                if tag.startswith(("perf/share/", "perf/idle/")) and isinstance(value, int | float):
                    sums[tag] = sums.get(tag, 0.0) + value * took
            wall += took
        return idle({tag: total / wall for tag, total in sums.items()}) if wall else None

    def last(self, tag: str) -> float | None:
        """Last finite value of a tag."""
        values = series(self.metrics, tag)[1]
        return values[-1] if values else None

    def videos(self) -> list[Path]:
        """Recorded games and episodes."""
        folder = self.dir / "videos"
        return sorted(path for path in folder.iterdir() if path.suffix in VIDEOS) if folder.is_dir() else []

    def pictures(self) -> list[Path]:
        """Pictures at the top of the folder."""
        return sorted(path for path in self.dir.iterdir() if path.suffix in PICTURES)


def living(processes: dict[str, Any]) -> bool | None:
    """True where every process of the run on this machine lives; None where none of them can be seen from here."""
    here = process_facts()["hostname"]
    ours = [rank for rank in processes.get("ranks", []) if rank["hostname"] == here and rank["began"] is not None]
    if not ours:
        return None
    return all(process_began(rank["pid"]) == rank["began"] for rank in ours)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}
