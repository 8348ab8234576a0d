"""Watching a running job from its files and, where it runs on this machine, from /proc; the job is not touched."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from powerband.core.console import clock, fitted, si
from powerband.core.idle import idle, largest
from powerband.core.pace import Pace
from powerband.core.run_folder import process_began, process_facts
from powerband.core.utilisation import usage, with_children
from powerband.report.record import living

SILENT_S, SILENT_INTERVALS = 60.0, 5
"""A run is called silent after this many seconds without a line, and this many of its usual intervals."""
SAMPLE_S = 0.5
"""What a single look measures processor use over."""
COLUMNS = 120


@dataclass(frozen=True)
class Reading:
    """What is known of a run at one moment; None where it is not.

    Attributes:
        time: Local time, ISO 8601.
        state: starting, running, silent, dead or ended.
        word: What there is to say about the state.
        silent_s: Seconds since the run wrote its last line.
        left_s: Seconds until its budget is spent at the rate of its last intervals.
        idle, idle_cause: Share of the last interval in which the learner waited, and for what.
        largest, largest_share: The account that took most of the last interval.
        cpu_cores, memory_gib: Of all its processes on this machine, now; of the leading rank at its last line where
            it runs elsewhere.
    """

    time: str
    state: str
    word: str = ""
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
        facts = [f"{si(self.env_steps)} steps"]
        if self.steps_per_s is not None:
            facts.append(f"{si(self.steps_per_s)} steps/s")
        if self.left_s is not None and self.state in ("running", "silent"):
            facts.append(f"left {clock(self.left_s)}")
        if self.idle is not None:
            facts.append(f"idle {self.idle:.0%} {self.idle_cause}".rstrip())
        if self.largest_share is not None:
            facts.append(f"most: {self.largest} {self.largest_share:.0%}")
        if self.cpu_cores is not None:
            facts.append(f"cpu {self.cpu_cores:.1f} cores")
        if self.memory_gib is not None:
            facts.append(f"mem {self.memory_gib:.1f} GiB")
        if self.gpu_active is not None:
            facts.append(f"gpu {self.gpu_active:.0%}")
        if self.gpu_memory_gib is not None:
            facts.append(f"{self.gpu_memory_gib:.1f} GiB")
        line = fitted(f"{self.time[11:19]}  {self.state}", facts, COLUMNS)
        return f"{line}\n{'':10}{self.word}" if self.word and self.state != "running" else line


class Watcher:
    """Reads a run folder again and again.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / "metrics.jsonl"
        settings = _json(folder / "config.json").get("run", {})
        self._budget = settings.get("env_steps", 0), settings.get("time_limit_s", 0.0)
        self._cpu: tuple[float, dict[int, float]] = (0.0, {})
        self._restart()

    def read(self) -> Reading:
        """The run as it is now."""
        self._follow()
        processes = _json(self.folder / "processes.json")
        wrote = [path for path in (self._path, self.folder / "processes.json") if path.exists()]
        silent_s = max(0.0, time.time() - max((path.stat().st_mtime for path in wrote), default=time.time()))
        state, word = self._state(processes, silent_s)
        facts: dict[str, Any] = {"state": state, "word": word, "silent_s": round(silent_s, 1)}
        facts |= self._figures() if self._line else {}
        facts |= self._now(processes) if state in ("starting", "running", "silent") else {}
        return Reading(time.strftime("%Y-%m-%dT%H:%M:%S"), **facts)

    def _restart(self) -> None:
        self._offset, self._torn = 0, ""
        self._line: dict[str, Any] = {}
        self._gaps: deque[float] = deque(maxlen=20)
        self._pace = Pace(*self._budget)

    def _follow(self) -> None:
        """Takes in what was appended since; from the start again where a resume has rewritten the file."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < self._offset:
            self._restart()
        if size == self._offset:
            return
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._offset)
            text = file.read()
            self._offset = file.tell()
        *whole, self._torn = (self._torn + text).split("\n")
        for line in filter(None, whole):
            try:
                self._take(json.loads(line))
            except json.JSONDecodeError:  # torn by a kill, and the run went on behind it
                continue

    def _take(self, line: dict[str, Any]) -> None:
        if self._line:
            steps, took = (line[name] - self._line[name] for name in ("env_steps", "time_s"))
            if took > 0:
                self._gaps.append(took)
                self._pace.add(steps, took)
        else:
            self._pace.add(line["env_steps"], line["time_s"])
        self._line = line

    def _state(self, processes: dict[str, Any], silent_s: float) -> tuple[str, str]:
        """(state, what there is to say about it)."""
        if processes.get("ended"):
            return "ended", processes["ended"]
        alive, last = living(processes), f"its last line is {clock(silent_s)} old"
        if alive is False:
            goes_on = (self.folder / "checkpoints" / "last").exists()
            recipe = _json(self.folder / "run.json").get("recipe", "RECIPE")
            fix = f"powerband train {recipe} resume={self.folder}" if goes_on else "it left no checkpoint"
            return "dead", f"a process of the run is gone without a last word; {last}. To go on: {fix}"
        usual = sorted(self._gaps)[len(self._gaps) // 2] if self._gaps else 0.0
        if silent_s > max(SILENT_S, SILENT_INTERVALS * usual):
            known = "its processes live" if alive else "whether its processes live cannot be seen from this machine"
            before = f", there was one every {clock(usual)} before" if usual else ""
            return "silent", f"{last}{before}; {known}"
        return ("running", "") if self._line else ("starting", "no line yet: building, compiling, or reading")

    def _figures(self) -> dict[str, Any]:
        """What the last line says."""
        line, waits, (account, share) = self._line, idle(self._line), largest(self._line)
        left_s = self._pace.left_s(line["env_steps"], line["time_s"])
        facts = {"env_steps": line["env_steps"], "grad_steps": line["grad_steps"], "left_s": left_s}
        facts |= {"steps_per_s": line.get("charts/SPS"), "updates_per_s": line.get("charts/updates_per_s")}
        facts |= {"idle": waits[0], "idle_cause": waits[1]} if waits else {}
        facts |= {"largest": account, "largest_share": share} if account else {}
        names = ("cpu_cores", "memory_gib", "gpu_active", "gpu_power", "gpu_memory_gib")
        return facts | {name: line.get(f"perf/{name}") for name in names}

    def _now(self, processes: dict[str, Any]) -> dict[str, float]:
        """Processor and memory of all processes of the run on this machine, since the last look."""
        here = process_facts()["hostname"]
        ranks = [rank for rank in processes.get("ranks", []) if rank["hostname"] == here]
        pids = [
            pid for rank in ranks if process_began(rank["pid"]) == rank["began"] for pid in with_children(rank["pid"])
        ]
        if not pids:
            return {}
        if not self._cpu[1]:
            self._cpu = time.perf_counter(), {pid: usage([pid])[0] for pid in pids}
            time.sleep(SAMPLE_S)
        (then, before), now = self._cpu, time.perf_counter()
        after = {pid: usage([pid])[0] for pid in pids}
        self._cpu = now, after
        busy = sum(cpu_s - before.get(pid, cpu_s) for pid, cpu_s in after.items()) / max(now - then, 1e-9)
        return {"cpu_cores": round(busy, 3), "memory_gib": round(usage(pids)[1] / 2**30, 3)}


def watch(folder: Path, kind: str = "text", once: bool = False, every_s: float = 2.0) -> int:
    """Prints a run's readings until it ends: one for each line that it writes and each change of its state.

    Args:
        folder: The run folder.
        kind: text, csv or json (one object a line).
        once: One reading, as it is now.
        every_s: Seconds between two looks.

    Returns:
        Exit status: 1 where the run is dead, else 0.
    """
    watcher, seen = Watcher(folder), None
    if kind == "csv":
        csv.writer(sys.stdout).writerow(field.name for field in fields(Reading))
    while True:
        reading = watcher.read()
        if (reading.state, reading.env_steps) != seen:
            seen = reading.state, reading.env_steps
            if kind == "csv":
                csv.writer(sys.stdout).writerow("" if value is None else value for value in asdict(reading).values())
            else:
                print(json.dumps(asdict(reading)) if kind == "json" else reading)
            sys.stdout.flush()
        if once or reading.state in ("dead", "ended"):
            return int(reading.state == "dead")
        time.sleep(every_s)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):  # not there, or just being written
        return {}
    return value if isinstance(value, dict) else {}
