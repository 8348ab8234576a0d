"""Tasks of LIBERO by name: benchmarks, their published order, instructions, goals, files. Nothing is simulated here."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from powerband.core.flags import ConfigError

BENCHMARKS = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_90": 90, "libero_10": 10}
"""Benchmark -> its number of tasks."""
INSTALL = "pip install 'powerband[libero]'"
STARTS = 50
"""Published initial states of a task at least."""


class NotInstalled(ConfigError):
    """LIBERO is not installed; the message has the command that installs it."""


@dataclass(frozen=True)
class Goal:
    """One condition of success, such as (on, akita_black_bowl_1, plate_1) or (close, wooden_cabinet_1_top_region).

    Attributes:
        relation: on, in, open, close, turnon or turnoff.
        subject: An object, or a region of a fixture.
        target: What it is to be on or in; "" for a relation of one.
    """

    relation: str
    subject: str
    target: str = ""


@dataclass(frozen=True)
class LiberoTask:
    """A task as published.

    Attributes:
        benchmark: Which benchmark it is of.
        index: Its place in the published order.
        name: Name of its files.
        instruction: What a policy is told.
        problem: File of the scene and the goal.
    """

    benchmark: str
    index: int
    name: str
    instruction: str
    problem: Path

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What must hold for success, in the file's order."""
        text = self.problem.read_text(encoding="utf-8")
        return goals_in(text)

    @property
    def key(self) -> str:
        """A name for files: the benchmark and the place in it."""
        return f"{self.benchmark}-{self.index:02d}"


def goals_in(problem: str) -> tuple[Goal, ...]:
    """The conditions of ``(:goal (And (On a b) ...))`` in the text of a problem."""
    said = re.search(r"\(:goal\s*\(\s*and(.*?)\)\s*\)\s*(?:\(:|\)|$)", problem, re.IGNORECASE | re.DOTALL)
    conditions = re.findall(r"\(\s*(\w+)\s+(\w+)(?:\s+(\w+))?\s*\)", said[1] + ")" if said else "")
    return tuple(Goal(relation.lower(), subject, target) for relation, subject, target in conditions)


def benchmark_named(word: str) -> str:
    """The benchmark that `word` means.

    Raises:
        ConfigError: There is none of that name; the nearest are named.
    """
    name = word.lower().replace("-", "_")
    name = name if name.startswith("libero") else f"libero_{name}"
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=2, cutoff=0.4)
        raise ConfigError(f"benchmark={word}: LIBERO has no such. Nearest: {', '.join(near) or ', '.join(BENCHMARKS)}.")
    return name


@cache
def tasks_of(benchmark: str) -> tuple[LiberoTask, ...]:
    """The tasks of a benchmark in their published order.

    Raises:
        NotInstalled: There is no LIBERO.
    """
    suite, problems = _suite(benchmark), _folder("bddl_files")
    tasks = []
    for index in range(suite.n_tasks):
        task = suite.get_task(index)
        file = problems / task.problem_folder / task.bddl_file
        tasks.append(LiberoTask(benchmark, index, task.name, task.language, file))
    return tuple(tasks)


def task_named(benchmark: str, word: str) -> LiberoTask:
    """A task by its number in the benchmark, its name, or its instruction.

    Raises:
        ConfigError: There is none; the nearest are named.
        NotInstalled: There is no LIBERO.
    """
    tasks = tasks_of(benchmark)
    if word.isdigit():
        if int(word) >= len(tasks):
            raise ConfigError(f"tasks={word}: {benchmark} has {len(tasks)}, from 0 on. Write tasks={len(tasks) - 1}.")
        return tasks[int(word)]
    name = word.replace(" ", "_")
    found = [task for task in tasks if name in (task.name, task.instruction.replace(" ", "_"))]
    if not found:
        near = difflib.get_close_matches(name, [task.name for task in tasks], n=3, cutoff=0.3)
        raise ConfigError(f"tasks={word}: {benchmark} has no such task. Nearest: {', '.join(near)}.")
    return found[0]


def starts_of(task: LiberoTask) -> list[Any]:
    """The published initial states of a task: flat arrays of time, positions and velocities."""
    with contextlib.redirect_stdout(io.StringIO()):
        return list(_suite(task.benchmark).get_task_init_states(task.index))


@cache
def _suite(benchmark: str) -> Any:
    try:
        from libero.libero import benchmark as benchmarks
    except ImportError as missing:
        raise NotInstalled(f"LIBERO is not installed ({missing}). Write {INSTALL}.") from missing
    with contextlib.redirect_stdout(io.StringIO()):  # the package prints the order that it takes
        return benchmarks.get_benchmark(benchmark)(0)


def _folder(what: str) -> Path:
    from libero.libero import get_libero_path

    return Path(get_libero_path(what)).resolve()
