"""Watch: reports the state of a run from the files of its folder, and from /proc if it runs on this machine."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from powerband.core.config.ranges import Range, check_ranges
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.json_shape import fits
from powerband.core.machine.utilisation import process_tree, process_usage
from powerband.core.regular_files import read_object
from powerband.core.run_folder import STALL_FILE, process_facts, process_start_ticks, refuse_links
from powerband.core.telemetry.console import duration_text, fit_columns, si_text
from powerband.core.telemetry.idle_causes import idle_share, largest
from powerband.core.telemetry.metrics_file import MetricsReader
from powerband.core.telemetry.time_left import TimeLeftEstimator
from powerband.report.run_record import processes_alive, read_processes, shown_cause

SILENT_S, SILENT_INTERVALS = 60.0, 5
"""A run is silent after this many seconds and this many of its usual log intervals without a line."""
SAMPLE_S = 0.5
"""Seconds over which a single reading measures CPU usage."""
BUDGET = {"env_steps": float, "time_limit_s": float}
COLUMNS = 120
"""Width of a printed line."""


@dataclass(frozen=True)
@check_ranges
class WatchOptions:
    """Options of ``powerband watch``."""

    csv: bool = False
    """Print readings as CSV with a header."""
    once: bool = False
    """Print the current state and exit."""
    every: Annotated[float, Range(above=0, at_most=86_400)] = 2.0
    """Seconds between two readings."""


@dataclass(frozen=True)
class RunStatus:
    """State of a run at one moment; None stands for an unknown value.

    Attributes:
        time: Local time, ISO 8601.
        state: ``starting``, ``running``, ``stalled`` (a rank makes no progress), ``silent`` (no line of metrics for
            long), ``dead`` (a process ended without a reason) or ``ended``.
        detail: Explanation of the state as text.
        silent_s: Seconds since the run wrote its last line of metrics.
        env_steps: Environment steps.
        grad_steps: Updates.
        steps_per_s: Environment steps per second in the last log interval.
        updates_per_s: Updates per second in the last log interval.
        left_s: Seconds until ``env_steps`` or ``time_limit_s`` ends the run, at the rate of the last log intervals.
        idle: Share of the last log interval in which the learner was idle.
        idle_cause: Main cause of the idle time.
        largest: Account (category of time) with the largest share of the last log interval.
        largest_share: Share of that account.
        cpu_cores: Busy cores of all processes of the run on this machine. If the run is on another machine, those of
            rank 0 in its last line of metrics.
        memory_gib: Memory of the same processes in GiB.
        gpu_active: Share of the last log interval in which the GPU ran a kernel.
        gpu_power: Power of the GPU as a share of its limit.
        gpu_memory_gib: Used GPU memory in GiB.
    """

    time: str
    state: str
    detail: str = ""
    silent_s: float = 0.0
    env_steps: int = 0
    grad_steps: int = 0
    steps_per_s: float | None = None
    updates_per_s: float | None = None
    left_s: float | None = None
    idle: float | None = None
    idle_cause: str = ""
    largest: str = ""
    largest_share: float | None = None
    cpu_cores: float | None = None
    memory_gib: float | None = None
    gpu_active: float | None = None
    gpu_power: float | None = None
    gpu_memory_gib: float | None = None

    def __str__(self) -> str:
        facts = [f"{si_text(self.env_steps)} steps"]
        if self.steps_per_s is not None:
            facts.append(f"{si_text(self.steps_per_s)} steps/s")
        if self.left_s is not None and self.state in ("running", "silent"):
            facts.append(f"left {duration_text(self.left_s)}")
        if self.idle is not None:
            facts.append(f"idle {self.idle:.0%} {shown_cause(self.idle, self.idle_cause)}".rstrip())
        if self.largest_share is not None:
            facts.append(f"largest account: {self.largest} {self.largest_share:.0%}")
        if self.cpu_cores is not None:
            facts.append(f"cpu {self.cpu_cores:.1f} cores")
        if self.memory_gib is not None:
            facts.append(f"memory {self.memory_gib:.1f} GiB")
        if self.gpu_active is not None:
            facts.append(f"gpu {self.gpu_active:.0%}")
        if self.gpu_memory_gib is not None:
            facts.append(f"gpu memory {self.gpu_memory_gib:.1f} GiB")
        line = fit_columns(f"{self.time[11:19]}  {self.state}", facts, COLUMNS)
        return f"{line}\n{'':10}{self.detail}" if self.detail and self.state != "running" else line


class Watcher:
    """Follows a run, in progress or ended, by reading the files of its folder repeatedly.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._metrics = folder, folder / "metrics.jsonl"
        settings = read_object(folder / "config.json").get("run")
        known = settings if settings is not None and fits(settings, BUDGET) else dict.fromkeys(BUDGET, 0)
        self._budget = known["env_steps"], known["time_limit_s"]
        self._cpu: tuple[float, dict[int, float]] = (0.0, {})
        self._restart()

    def read(self) -> RunStatus:
        """Reads the lines that the run has written since the last call, and returns its current state.

        The first call of a run on this machine takes half a second, in which it measures CPU usage.
        """
        self._follow()
        processes = read_processes(self.folder)
        files = [path for path in (self._metrics, self.folder / "processes.json") if path.exists()]
        silent_s = max(0.0, time.time() - max((path.stat().st_mtime for path in files), default=time.time()))
        state, detail = self._state(processes, silent_s)
        facts: dict[str, Any] = {"state": state, "detail": detail, "silent_s": round(silent_s, 1)}
        facts |= self._progress() if self._line else {}
        facts |= self._usage(processes) if state in ("starting", "running", "stalled", "silent") else {}
        return RunStatus(time.strftime("%Y-%m-%dT%H:%M:%S"), **facts)

    def _restart(self) -> None:
        self.lines = MetricsReader(self._metrics)
        self._line: dict[str, Any] = {}
        self._rates: dict[str, Any] = {}  # newest line with rates, which the result of an evaluation lacks
        self._intervals_s: deque[float] = deque(maxlen=20)
        self._time_left = TimeLeftEstimator(*self._budget)

    def _follow(self) -> None:
        """Reads the lines appended to ``metrics.jsonl``; starts again if a resume has rewritten the file."""
        size = self._metrics.stat().st_size if self._metrics.exists() else 0
        if size < self.lines.offset:
            self._restart()
        with contextlib.suppress(FileNotFoundError):
            for line in self.lines.read():
                self._add(line)

    def _add(self, line: dict[str, Any]) -> None:
        """Updates the usual log interval and the estimated remaining time with one line of metrics."""
        if self._line and line["env_steps"] < self._line["env_steps"]:
            return  # the late result of an evaluation
        if self._line:
            names = ("env_steps", "time_s", "grad_steps")
            steps, seconds, updates = (line[name] - self._line[name] for name in names)
            if seconds > 0:
                self._intervals_s.append(seconds)
                self._time_left.add(steps, seconds, updates=updates)
        else:
            self._time_left.add(line["env_steps"], line["time_s"], updates=line["grad_steps"])
        self._line = line
        if "charts/SPS" in line:
            self._rates = line

    def _state(self, processes: dict[str, Any], silent_s: float) -> tuple[str, str]:
        """Returns the fields ``state`` and ``detail`` of `RunStatus`."""
        if processes["ended"]:
            return "ended", processes["ended"]
        alive, age = processes_alive(processes), f"its last line is {duration_text(silent_s)} old"
        if alive is False:
            recipe = shortened(read_object(self.folder / "run.json").get("recipe", "RECIPE"))
            has_checkpoint = (self.folder / "checkpoints" / "last").exists()
            resume = f"Resume it with: powerband train {recipe} resume={self.folder}"
            fix = resume if has_checkpoint else "It has no checkpoint to resume from"
            return "dead", f"a process of the run ended without writing a reason; {age}. {fix}"
        if stall := read_object(self.folder / STALL_FILE):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                seconds, phase = max(0.0, time.time() - float(stall["since_s"])), str(stall["phase"])
                return "stalled", f"for {seconds:.0f} s in {phase} (rank {int(stall['rank'])}): {stall['message']}"
        usual = sorted(self._intervals_s)[len(self._intervals_s) // 2] if self._intervals_s else 0.0
        if silent_s > max(SILENT_S, SILENT_INTERVALS * usual):
            processes_text = "its processes are alive" if alive else "its processes are on another machine"
            usual_text = f" (usual interval: {duration_text(usual)})" if usual else ""
            return "silent", f"{age}{usual_text}; {processes_text}"
        return ("running", "") if self._line else ("starting", "no line yet: the run builds, compiles or reads data")

    def _progress(self) -> dict[str, Any]:
        """Returns the fields of `RunStatus` that follow from the last lines of metrics."""
        line, rates = self._line, self._rates
        idle, (account, share) = idle_share(rates), largest(rates)
        left_s = self._time_left.left_s(line["env_steps"], line["time_s"])
        facts = {"env_steps": line["env_steps"], "grad_steps": line["grad_steps"], "left_s": left_s}
        facts |= {"steps_per_s": rates.get("charts/SPS"), "updates_per_s": rates.get("charts/updates_per_s")}
        facts |= {"idle": idle[0], "idle_cause": shortened(idle[1])} if idle else {}
        facts |= {"largest": shortened(account), "largest_share": share} if account else {}
        names = ("cpu_cores", "memory_gib", "gpu_active", "gpu_power", "gpu_memory_gib")
        return facts | {name: rates.get(f"perf/{name}") for name in names}

    def _usage(self, processes: dict[str, Any]) -> dict[str, float]:
        """Returns the fields ``cpu_cores`` and ``memory_gib`` of `RunStatus`, for the processes on this machine.

        The processor use is that since the last reading. The result is empty if no process is alive here.
        """
        hostname = process_facts()["hostname"]
        ranks = [rank for rank in processes["ranks"] if rank["hostname"] == hostname and rank["began"] is not None]
        pids = [
            pid
            for rank in ranks
            if process_start_ticks(rank["pid"]) == rank["began"]
            for pid in process_tree(rank["pid"])
        ]
        if not pids:
            return {}
        if not self._cpu[1]:
            self._cpu = time.perf_counter(), {pid: process_usage([pid])[0] for pid in pids}
            time.sleep(SAMPLE_S)
        (previous_time, previous_cpu), now = self._cpu, time.perf_counter()
        cpu = {pid: process_usage([pid])[0] for pid in pids}
        self._cpu = now, cpu
        busy_s = sum(cpu_s - previous_cpu.get(pid, cpu_s) for pid, cpu_s in cpu.items())
        busy = busy_s / max(now - previous_time, 1e-9)
        return {"cpu_cores": round(busy, 3), "memory_gib": round(process_usage(pids)[1] / 2**30, 3)}


def watch(folder: Path, options: WatchOptions, as_json: bool = False) -> int:
    """Prints the state of a run for each new line of metrics and each change of the state, until the run ends.

    Args:
        folder: The run folder.
        options: Format and interval of the readings.
        as_json: Whether to print one JSON object per line. Notes about damaged lines go to standard error.

    Returns:
        Exit status: 1 if the run is dead, else 0.

    Raises:
        ConfigError: A file of the folder is a link, or the metrics cannot be read.
    """
    refuse_links(folder)
    watcher, printed, noted = Watcher(folder), None, ""
    table = csv.writer(sys.stdout) if options.csv and not as_json else None
    if table is not None:
        table.writerow(field.name for field in fields(RunStatus))
    while True:
        try:
            reading = watcher.read()
        except OSError as error:
            raise ConfigError(f"{folder} cannot be read ({error.strerror}). Name another run folder.") from error
        if watcher.lines.note != noted:
            noted = watcher.lines.note
            print(f"powerband: {noted}", file=sys.stderr)
        if (reading.state, reading.env_steps) != printed:
            printed = reading.state, reading.env_steps
            if table is not None:
                table.writerow("" if value is None else value for value in asdict(reading).values())
            else:
                print(json.dumps(asdict(reading)) if as_json else reading)
            sys.stdout.flush()
        if options.once or reading.state in ("dead", "ended"):
            return int(reading.state == "dead")
        time.sleep(options.every)
