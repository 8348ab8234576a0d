"""Benchmark harness: trains for some seconds through the command line and reads the metrics of the run.

Each measurement is a separate process with the arguments that a user would type, so that threads, compiled code and
memory of one setting do not affect the next. Settings are interleaved: each is measured once per round.
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

from powerband.core.config import ResolvedConfig, resolve
from powerband.core.config.command_line import split_named_options
from powerband.core.config.resolve import COMMAND_LINE
from powerband.core.errors import ConfigError
from powerband.core.machine.device import OPENMP_WAIT_VARIABLES, cores, host_facts, keep_freed_memory
from powerband.core.telemetry.idle_causes import account_shares, idle_share
from powerband.report.run_record import shown_cause

Configure = Callable[[str, list[str]], tuple[Any, str, ResolvedConfig]]
"""(recipe name, arguments) -> (recipe, stage, configuration); the command line passes this function."""
Measurement = Callable[[], dict[str, Any]]
"""Function that measures a case once and returns its metrics, with the keys of `measure`."""
FIRST_UPDATE_TIMEOUT_S = 180.0
"""Seconds after which a run without an update counts as failed."""
LOG_S = 0.25
"""Log interval of a measured run, in seconds."""


def options(schema: type, arguments: list[str], help_command: str) -> tuple[Any, list[str]]:
    """Separates the options of a benchmark from the arguments of the recipe.

    Args:
        schema: Dataclass of the benchmark's options.
        arguments: Command line after the name of the benchmark.
        help_command: Command that error messages name.

    Returns:
        (options of the benchmark, all remaining arguments in their order).

    Raises:
        ConfigError: An option has an invalid value.
    """
    names = tuple(field.name for field in fields(schema))
    bench_arguments, recipe_arguments = split_named_options(arguments, names)
    return resolve(schema, bench_arguments, help_command=help_command).config, recipe_arguments


def measure(arguments: list[str], seconds: float) -> dict[str, Any]:
    """Runs ``powerband train`` until `seconds` after the first updates and reads the metrics of this window.

    Args:
        arguments: Command line after ``powerband train``.
        seconds: Length of the window.

    Returns:
        {"steps_per_s", "updates_per_s", "seconds": length of the window, "idle": share of time in which the learner is
        idle (None if unknown), "idle_cause", "shares": category of time -> share, "cpu_cores": busy cores (None if
        unknown), "start_s": seconds from the start of the process to the window}.

    Raises:
        ConfigError: The run ended before the end of the window or made no update; the message has its last output.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir, output = Path(folder) / "run", Path(folder) / "output"
        fixed = [f"run_dir={run_dir}", f"log_interval_s={LOG_S}", "env_steps=1000000000000", "tensorboard=false"]
        command = [sys.executable, "-P", "-m", "powerband", "train", *arguments, *fixed]
        started = time.perf_counter()
        with output.open("w") as log:
            job = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
            try:
                window = _wait(job, run_dir, seconds, started, output)
                start_s = time.perf_counter() - started - (window[-1]["time_s"] - window[0]["time_s"])
            finally:
                _stop(job, run_dir)
    first, last = window[0], window[-1]
    window_s = last["time_s"] - first["time_s"]
    means = _means(window)
    idle = idle_share(means)
    return {
        "steps_per_s": (last["env_steps"] - first["env_steps"]) / window_s,
        "updates_per_s": (last["grad_steps"] - first["grad_steps"]) / window_s,
        "seconds": window_s,
        "idle": idle[0] if idle else None,
        "idle_cause": idle[1] if idle else "",
        "shares": account_shares(means),
        "cpu_cores": means.get("perf/cpu_cores"),
        "start_s": start_s,
    }


def restart_with_cli_environment() -> None:
    """Restarts this script with the OpenMP environment variables that the command line sets.

    Benchmarks that run a recipe in their own process call this function first, because torch reads the variables when
    it is imported. If one of them is already set, the function only configures the memory allocator like the command
    line and returns.
    """
    keep_freed_memory()
    if not OPENMP_WAIT_VARIABLES.keys() & os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **OPENMP_WAIT_VARIABLES})


def print_now(line: str) -> None:
    """Prints a line without buffering."""
    print(line, flush=True)


def interleaved(
    cases: dict[str, Measurement], rounds: int, print_line: Callable[[str], None] = print_now
) -> list[dict[str, Any]]:
    """Measures every case once per round and prints a table.

    Args:
        cases: Name of a case, such as a value of a setting -> function that measures it once, see `Measurement`.
        rounds: Number of rounds.
        print_line: Function that prints a line.

    Returns:
        One row per case: ``case``, the medians of its metrics, and ``rounds`` with all measurements.
    """
    measurements: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    width = max(map(len, cases), default=0)
    for index in range(rounds):
        for name, measure_case in cases.items():
            metrics = measure_case()
            measurements[name].append(metrics)
            print_line(f"round {index + 1} of {rounds}  {name:<{width}}  {metrics['steps_per_s']:>9.1f} steps/s")
    print_line(f"{'':<{width}}  {'steps/s':>9}  {'min':>9}  {'max':>9}  {'updates/s':>10}  {'idle':>5}  idle cause")
    rows = []
    for name, measured in measurements.items():
        row: dict[str, Any] = {"case": name}
        for key in ("steps_per_s", "updates_per_s", "idle", "cpu_cores", "start_s"):
            values = [metrics[key] for metrics in measured if metrics.get(key) is not None]
            row[key] = statistics.median(values) if values else None
        row["idle_cause"] = measured[-1].get("idle_cause", "")
        rows.append({**row, "rounds": measured})
        rates = [metrics["steps_per_s"] for metrics in measured]
        idle, cause = row["idle"], row["idle_cause"]
        idle_text = "" if idle is None else f"{idle:.0%}"
        cause_text = "" if idle is None else shown_cause(idle, cause)
        print_line(
            f"{name:<{width}}  {row['steps_per_s']:>9.1f}  {min(rates):>9.1f}  {max(rates):>9.1f}  "
            f"{row['updates_per_s']:>10.1f}  {idle_text:>5}  {cause_text}".rstrip()
        )
    return rows


def result(bench: str, config: Any, arguments: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Builds the JSON result of a benchmark.

    Args:
        bench: Name of the benchmark.
        config: Options of the benchmark, a dataclass.
        arguments: Arguments of the recipe.
        rows: Rows of `interleaved`.

    Returns:
        {"bench": name, "host": facts of the machine, "options": options, "words": arguments, "rows": rows}.
    """
    values = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
    variables = {name: value for name, value in values.items() if value is not None}
    host = {**host_facts(), "cores": cores(), "environment": variables}
    return {"bench": bench, "host": host, "options": asdict(config), "words": arguments, "rows": rows}


def print_header(bench: str, arguments: Iterable[str], rounds: int, seconds: float) -> None:
    """Prints the benchmark, the machine and the number of measurements.

    Args:
        bench: Name of the benchmark.
        arguments: Arguments after ``powerband train``.
        rounds: Number of rounds.
        seconds: Seconds per measurement.
    """
    host = host_facts()
    gpus = ", ".join(gpu["name"] for gpu in host["gpus"]) or "no GPU"
    print(f"{bench}: powerband train {' '.join(arguments)}")
    threads = os.environ.get("OMP_NUM_THREADS", "chosen by each run")
    print(f"{host['cpu']}, {host['cores']} cores, {gpus}, torch {host['torch']}, threads {threads}")
    print(f"{rounds} interleaved rounds of {seconds:g} s each; medians", flush=True)


def resolve_knob(configure: Configure, arguments: list[str], knob: str, value: Any) -> tuple[str, Any]:
    """Finds the qualified name and the present value of a setting of a recipe.

    Args:
        configure: Function (recipe name, arguments) -> (recipe, stage, configuration).
        arguments: Name of the recipe and its arguments.
        knob: Name of the setting, qualified or not.
        value: A valid value of the setting.

    Returns:
        (qualified name of the setting, its value under `arguments`).

    Raises:
        ConfigError: The recipe is unknown, has no such setting, or its algorithm does not read it.
    """
    name, *rest = arguments
    recipe, _, changed = configure(name, [*rest, f"{knob}={value}"])
    path = next(path for path, source in changed.sources.items() if source == COMMAND_LINE and path.endswith(knob))
    if any(notice.startswith(f"{path}: no effect") for notice in changed.notices):
        algo = recipe.algorithm_of(changed.config)
        raise ConfigError(
            f"{path} has no effect with algo={algo}, so its values cannot be compared. Choose another algo."
        )
    value = configure(name, rest)[2].config
    for attribute in path.split("."):
        value = getattr(value, attribute)
    return path, value


def _wait(job: subprocess.Popen, run_dir: Path, seconds: float, started: float, output: Path) -> list[dict[str, Any]]:
    """Waits for the end of the window and returns its lines of metrics.

    The window begins one line after the first updates, which include compilation.
    """
    while True:
        lines = _read_lines(run_dir)
        first = next((index for index, line in enumerate(lines) if line["grad_steps"] > 0), None)
        window = lines[first + 1 :] if first is not None else []
        if len(window) > 1 and window[-1]["time_s"] - window[0]["time_s"] >= seconds:
            return window
        elapsed = time.perf_counter() - started
        if job.poll() is not None or (first is None and elapsed > FIRST_UPDATE_TIMEOUT_S):
            last_output = " ".join(output.read_text().strip().splitlines()[-3:])[-600:]
            ended = job.returncode is not None
            reason = f"ended with status {job.returncode}" if ended else f"made no update in {elapsed:.0f} s"
            command = [str(argument) for argument in job.args[2:]] if isinstance(job.args, list) else []
            raise ConfigError(f"{' '.join(command)} {reason}. Its last output: {last_output}")
        time.sleep(0.1)


def _stop(job: subprocess.Popen, run_dir: Path) -> None:
    """Sends SIGTERM to rank 0, which stops the other ranks, or to the job if no rank is known.

    A run that does not end within 60 s is killed.
    """
    leader = job.pid
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        leader = json.loads((run_dir / "processes.json").read_text())["ranks"][0]["pid"]
    if job.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, signal.SIGTERM)
    try:
        job.wait(60)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def _read_lines(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    complete_lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in complete_lines]


def _means(window: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the means of all ``perf/`` metrics over the window, weighted by the seconds of its log intervals.

    Lines with results of evaluations have no such metrics; the next log interval contains their time.
    """
    window = [line for line in window if any(tag.startswith("perf/") for tag in line)]
    if len(window) < 2:
        return {}
    sums: dict[str, float] = {}
    window_s = window[-1]["time_s"] - window[0]["time_s"]
    for previous, line in zip(window, window[1:], strict=False):
        for tag, value in line.items():
            if tag.startswith("perf/") and isinstance(value, int | float):
                sums[tag] = sums.get(tag, 0.0) + value * (line["time_s"] - previous["time_s"])
    return {tag: total / window_s for tag, total in sums.items()}


def environment() -> dict[str, str]:
    """Returns the environment variables of this process, with a PYTHONPATH that contains this package."""
    source = str(Path(__file__).parents[2])
    paths = [source, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
