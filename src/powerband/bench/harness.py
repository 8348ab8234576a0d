"""The harness of the benchmarks: the real command line trains for some seconds, and its own metrics are read.

Each measurement is a process of its own, started with the words a user would type, so that nothing of one setting
(threads, compiled code, memory) is left for the next. What is compared is interleaved: every setting once, then every
setting again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from powerband.core.config import COMMAND_LINE, ConfigError, Resolved, resolve
from powerband.core.device import WAITING, cores, host_facts, keep_memory
from powerband.core.idle import idle, shares

Configure = Callable[[str, list[str]], tuple[Any, str, Resolved]]
"""(recipe, words) -> (recipe's module, stage, configuration); the command line hands it over."""
PATIENCE_S = 180.0
"""A run that has made no update by then is given up."""
LOG_S = 0.25
"""Seconds between two lines of a measured run."""


def options(schema: type, words: list[str], help_with: str) -> tuple[Any, list[str]]:
    """(the benchmark's own options, the other words in their order: a recipe and what is typed after it).

    Raises:
        ConfigError: An option with a wrong value, or a word with neither a recipe nor an option before it.
    """
    own = {field.name for field in fields(schema)}
    mine, others, waiting = [], [], iter(words)
    for word in waiting:
        name = word.lstrip("-").partition("=")[0].replace("-", "_")
        if name not in own or not (word.startswith("--") or "=" in word):
            others.append(word)
            continue
        mine.append(word)
        mine += [next(waiting, "")] if "=" not in word else []
    return resolve(schema, mine, help_with=help_with).config, others


def measure(words: list[str], seconds: float) -> dict[str, Any]:
    """Trains with `words` after ``powerband train`` until `seconds` after its first updates, and reads its metrics.

    Returns:
        steps_per_s, updates_per_s, seconds (of the window), idle, idle_cause, shares, cpu_cores, start_s (from the
        start of the process to the window).

    Raises:
        ConfigError: The run ended, or made no update, before its window was over; with its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir, said = Path(folder) / "run", Path(folder) / "said"
        fixed = [f"run_dir={run_dir}", f"log_interval_s={LOG_S}", "env_steps=1000000000000", "tensorboard=false"]
        command = [sys.executable, "-m", "powerband", "train", *words, *fixed]
        started = time.perf_counter()
        with said.open("w") as log:
            job = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
            try:
                window = _wait(job, run_dir, seconds, started, said)
                start_s = time.perf_counter() - started - (window[-1]["time_s"] - window[0]["time_s"])
            finally:
                _stop(job, run_dir)
    before, last = window[0], window[-1]
    took = last["time_s"] - before["time_s"]
    figures = _weighted(window)
    waits = idle(figures)
    return {
        "steps_per_s": (last["env_steps"] - before["env_steps"]) / took,
        "updates_per_s": (last["grad_steps"] - before["grad_steps"]) / took,
        "seconds": took,
        "idle": waits[0] if waits else None,
        "idle_cause": waits[1] if waits else "",
        "shares": shares(figures),
        "cpu_cores": figures.get("perf/cpu_cores"),
        "start_s": start_s,
    }


def wait_as_runs_do() -> None:
    """Starts this script anew with the variables that the command line sets: torch has read them when it was imported.

    For benchmarks that run a recipe in their own process; it keeps memory as the command line does.
    """
    keep_memory()
    if not WAITING.keys() & os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **WAITING})


def print_now(line: str) -> None:
    """Prints a line that is seen at once, through a pipe too."""
    print(line, flush=True)


def interleaved(
    cases: dict[str, Callable[[], dict[str, Any]]], rounds: int, say: Callable[[str], None] = print_now
) -> list[dict[str, Any]]:
    """Measures every case once a round and says what it found.

    Args:
        cases: Name -> measures it once.
        rounds: How often.
        say: Prints a line.

    Returns:
        One row a case: ``case``, the medians of its figures, and ``rounds`` with each measurement.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    width = max(map(len, cases), default=0)
    for index in range(rounds):
        for name, once in cases.items():
            found[name].append(once())
            say(f"round {index + 1} of {rounds}  {name:<{width}}  {found[name][-1]['steps_per_s']:>9.1f} steps/s")
    say(f"{'':<{width}}  {'steps/s':>9}  {'min':>9}  {'max':>9}  {'updates/s':>10}  {'idle':>5}  cause")
    rows = []
    for name, measured in found.items():
        row: dict[str, Any] = {"case": name}
        for figure in ("steps_per_s", "updates_per_s", "idle", "cpu_cores", "start_s"):
            known = [one[figure] for one in measured if one.get(figure) is not None]
            row[figure] = statistics.median(known) if known else None
        row["idle_cause"] = measured[-1].get("idle_cause", "")
        rows.append({**row, "rounds": measured})
        rates = [one["steps_per_s"] for one in measured]
        waits = "" if row["idle"] is None else f"{row['idle']:.0%}"
        say(
            f"{name:<{width}}  {row['steps_per_s']:>9.1f}  {min(rates):>9.1f}  {max(rates):>9.1f}  "
            f"{row['updates_per_s']:>10.1f}  {waits:>5}  {row['idle_cause']}"
        )
    return rows


def result(bench: str, config: Any, words: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a benchmark returns: itself, the machine, its threads, its options, the recipe's words, its rows."""
    said = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
    host = {**host_facts(), "cores": cores(), "environment": {k: v for k, v in said.items() if v is not None}}
    return {"bench": bench, "host": host, "options": asdict(config), "words": words, "rows": rows}


def header(what: str, words: Iterable[str], rounds: int, seconds: float) -> None:
    """Says what is measured, on which machine."""
    host = host_facts()
    gpus = ", ".join(gpu["name"] for gpu in host["gpus"]) or "no GPU"
    print(f"{what}: powerband train {' '.join(words)}")
    threads = os.environ.get("OMP_NUM_THREADS", "as each run decides")
    print(f"{host['cpu']}, {host['cores']} cores, {gpus}, torch {host['torch']}, threads {threads}")
    print(f"{rounds} rounds of {seconds:g} s each, interleaved; medians", flush=True)


def setting(configure: Configure, words: list[str], knob: str, value: Any) -> tuple[str, Any]:
    """(qualified name, what it is without the knob) of a knob in a recipe's configuration.

    Raises:
        ConfigError: The recipe is none, has no such knob, or its algorithm does not read it.
    """
    name, *rest = words
    _, _, turned = configure(name, [*rest, f"{knob}={value}"])
    path = next(path for path, source in turned.sources.items() if source == COMMAND_LINE and path.endswith(knob))
    if any(notice.startswith(f"{path}: no effect") for notice in turned.notices):
        algo = getattr(turned.config, "algo", "")
        raise ConfigError(f"{path} has no effect with algo={algo}: there is nothing to compare. Name another algo.")
    value = configure(name, rest)[2].config
    for part in path.split("."):
        value = getattr(value, part)
    return path, value


def _wait(job: subprocess.Popen, run_dir: Path, seconds: float, started: float, said: Path) -> list[dict[str, Any]]:
    """Waits until the window is over; its lines, from the one after the first updates on, which compiled."""
    while True:
        lines = _lines(run_dir)
        first = next((index for index, line in enumerate(lines) if line["grad_steps"] > 0), None)
        window = lines[first + 1 :] if first is not None else []
        if len(window) > 1 and window[-1]["time_s"] - window[0]["time_s"] >= seconds:
            return window
        elapsed = time.perf_counter() - started
        if job.poll() is not None or (first is None and elapsed > PATIENCE_S):
            words = " ".join(said.read_text().strip().splitlines()[-3:])[-600:]
            ended = job.returncode is not None
            why = f"ended with status {job.returncode}" if ended else f"no update in {elapsed:.0f} s"
            raise ConfigError(f"{' '.join(job.args[2:])}: {why}: {words}")
        time.sleep(0.1)


def _stop(job: subprocess.Popen, run_dir: Path) -> None:
    """Asks the leading rank to end; it tells the others. Kills what does not listen."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        ranks = json.loads((run_dir / "processes.json").read_text())["ranks"]
        if job.poll() is None:
            os.kill(ranks[0]["pid"], signal.SIGTERM)
    try:
        job.wait(60)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def _lines(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    whole = path.read_text().split("\n")[:-1]
    return [json.loads(text) for text in whole]


def _weighted(window: list[dict[str, Any]]) -> dict[str, float]:
    """Means of the measured figures over the window, weighted by the seconds of its intervals."""
    sums: dict[str, float] = {}
    whole = window[-1]["time_s"] - window[0]["time_s"]
    for before, line in zip(window, window[1:], strict=False):
        for tag, value in line.items():
            if tag.startswith("perf/") and isinstance(value, int | float):
                sums[tag] = sums.get(tag, 0.0) + value * (line["time_s"] - before["time_s"])
    return {tag: total / whole for tag, total in sums.items()}


def environment() -> dict[str, str]:
    """That of this process, in which the measured one finds this package."""
    source = str(Path(__file__).parents[2])
    paths = [source, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
