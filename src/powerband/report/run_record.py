"""RunRecord: reads the contents of a run folder. Missing and damaged files count as empty, except the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.core.config.texts import shortened
from powerband.core.json_shape import fits
from powerband.core.regular_files import read_object
from powerband.core.run_folder import process_facts, process_start_ticks, refuse_links
from powerband.core.telemetry.idle_causes import IDLE_PREFIX, SHARE_PREFIX, idle_share
from powerband.report.sections.curves import read_lines, series

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".svg")
VIDEO_SUFFIXES = (".mp4", ".webm")
FACTS = {"recipe": str, "stage": str, "command": str, "powerband": str, "host": dict}
"""Types of the entries of ``run.json`` that the page uses; an entry of another type is omitted."""
PROCESS = {"hostname": str, "pid": int, "began": (int, None)}
MIN_IDLE_SHARE = 0.1
"""Share of the wall time; if the learner is idle for less, no cause is shown."""


@dataclass(frozen=True)
class RunRecord:
    """Contents of a run folder.

    Attributes:
        dir: The run folder.
        facts: Contents of ``run.json``: recipe, command, versions, host.
        config: Contents of ``config.json``: the resolved configuration.
        metrics: Lines of ``metrics.jsonl``, one dict per log interval.
        evaluations: Name -> table rows in ``eval-<name>.json``, which ``powerband eval`` writes; a row is a dict.
        trace: Contents of ``trace.json``, a Chrome trace; empty if none was recorded.
        processes: Contents of ``processes.json``: the processes of the run and the reason of its end.
        damage: Note about damaged lines of ``metrics.jsonl``, which were skipped; "" without any.
    """

    dir: Path
    facts: dict[str, Any]
    config: dict[str, Any]
    metrics: list[dict]
    evaluations: dict[str, list[dict]]
    trace: dict[str, Any]
    processes: dict[str, Any]
    damage: str = ""

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Reads a run folder.

        Args:
            folder: The run folder.

        Raises:
            ConfigError: The folder has no metrics: it is not a run folder, or the run has logged nothing yet. Or it
                has links, which lead to other files.
        """
        folder = Path(folder)
        refuse_links(folder)
        evaluations = {
            path.stem.removeprefix("eval-"): rows
            for path in sorted(folder.glob("eval-*.json"))
            if fits(rows := read_object(path).get("rows"), [dict]) and rows
        }
        facts = read_object(folder / "run.json")
        metrics, damage = read_lines(folder)
        return cls(
            dir=folder,
            facts={name: value for name, value in facts.items() if fits(value, FACTS.get(name, object))},
            config=read_object(folder / "config.json"),
            metrics=metrics,
            damage=damage,
            evaluations=evaluations,
            trace=read_object(folder / "trace.json"),
            processes=read_processes(folder),
        )

    @property
    def name(self) -> str:
        """Name of the run folder, without its parents."""
        return self.dir.absolute().name

    @property
    def state(self) -> str:
        """State of the run as text: running, dead, unknown, or ended with the reason."""
        if self.processes["ended"]:
            return f"ended: {self.processes['ended']}"
        alive = processes_alive(self.processes)
        if alive is None:
            return "state unknown: its processes are on another machine, or an older version of powerband wrote it"
        return "running" if alive else "dead: its process ended without writing a reason"

    @property
    def wall_s(self) -> float:
        """Seconds of training at the last line of the metrics."""
        return self.metrics[-1]["time_s"] if self.metrics else 0.0

    def mean_rate(self, counter: str = "env_steps") -> float:
        """Returns the mean environment steps or updates per second over the run.

        Args:
            counter: ``env_steps``, or ``grad_steps`` for updates.
        """
        return self.metrics[-1][counter] / self.wall_s if self.wall_s else 0.0

    def idle(self) -> tuple[float, str] | None:
        """Computes the idle share of the learner over the run and its main cause; None if nothing was measured.

        The learner is idle while it does not compute, for example while it waits for simulators.

        Returns:
            (idle share of the wall time, 0 to 1; main cause, such as ``env-bound``).
        """
        sums: dict[str, float] = {}
        wall, previous_s = 0.0, 0.0
        for line in self.metrics:
            if not any(tag.startswith("perf/") for tag in line):  # an evaluation of a checkpoint, no log interval
                continue
            seconds, previous_s = max(line["time_s"] - previous_s, 0.0), line["time_s"]
            for tag, value in line.items():
                if tag.startswith((SHARE_PREFIX, IDLE_PREFIX)) and isinstance(value, int | float):
                    sums[tag] = sums.get(tag, 0.0) + value * seconds
            wall += seconds
        return idle_share({tag: total / wall for tag, total in sums.items()}) if wall else None

    def last(self, tag: str) -> float | None:
        """Returns the last finite value of a metric; None if it has none.

        Args:
            tag: Name of the metric, such as ``eval/return``.
        """
        values = series(self.metrics, tag)[1]
        return values[-1] if values else None

    def videos(self) -> list[Path]:
        """Returns the video files of recorded games and episodes."""
        return _files(self.dir / "videos", VIDEO_SUFFIXES)

    def images(self) -> list[Path]:
        """Returns the image files directly in the run folder, then those among its videos, such as animated GIFs."""
        return _files(self.dir, IMAGE_SUFFIXES) + _files(self.dir / "videos", IMAGE_SUFFIXES)


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Regular files with these suffixes; a folder or a pipe of such a name is left out. No `folder` has no files."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in suffixes and path.is_file())


def processes_alive(processes: dict[str, Any]) -> bool | None:
    """Returns whether all processes of a run on this machine are alive; None if it has no process on this machine.

    Args:
        processes: Result of `read_processes`.
    """
    hostname = process_facts()["hostname"]
    local = [rank for rank in processes["ranks"] if rank["hostname"] == hostname and rank["began"] is not None]
    if not local:
        return None
    return all(process_start_ticks(rank["pid"]) == rank["began"] for rank in local)


def shown_cause(idle: float, cause: str) -> str:
    """Returns the cause of idle time for display; empty if the idle time is too short to show one.

    Args:
        idle: Share of the wall time in which the learner is idle; compared with `MIN_IDLE_SHARE`.
        cause: Main cause of the idle time.
    """
    return cause if idle >= MIN_IDLE_SHARE else ""


def read_processes(folder: Path) -> dict[str, Any]:
    """Reads ``processes.json`` in a run folder; what is missing or damaged counts as unknown.

    Returns:
        ``ranks``: result of `process_facts` for each rank; and ``ended``: the reason of the end, or "".
    """
    facts = read_object(folder / "processes.json")
    ranks, ended = facts.get("ranks"), facts.get("ended")
    return {
        "ranks": ranks if fits(ranks, [PROCESS]) else [],
        "ended": shortened(ended, 500) if isinstance(ended, str) else "",
    }
