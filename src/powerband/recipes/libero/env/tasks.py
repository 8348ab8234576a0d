"""Finds tasks of LIBERO by name, and reads their instructions, goals and files. Nothing is simulated here."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from powerband.core.config.texts import SHOWN, shortened
from powerband.core.errors import ConfigError

BENCHMARKS = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_90": 90, "libero_10": 10}
"""Benchmark -> number of tasks."""
INSTALL = "pip install 'powerband[libero]'"
NUM_PUBLISHED_STATES = 50
"""Smallest number of published initial states of a task."""


class LiberoNotInstalled(ConfigError):
    """Raised if LIBERO is not installed; the message contains the command that installs it."""


@dataclass(frozen=True)
class Goal:
    """One condition of success, such as (on, akita_black_bowl_1, plate_1) or (close, wooden_cabinet_1_top_region).

    Attributes:
        relation: on, in, open, close, turnon or turnoff.
        subject: Object, or region of a fixture.
        target: Object or region that the subject must be on or in; "" for a relation of the subject alone.
    """

    relation: str
    subject: str
    target: str = ""


@dataclass(frozen=True)
class LiberoTask:
    """A task of a LIBERO benchmark.

    Attributes:
        benchmark: Benchmark of the task.
        index: Position in the published order of the benchmark, counted from 0.
        name: Name of the task in LIBERO, which is also that of its files.
        instruction: Instruction for the policy, a sentence such as "open the drawer".
        problem: BDDL file, which describes the scene and the goals.
    """

    benchmark: str
    index: int
    name: str
    instruction: str
    problem: Path

    @property
    def goals(self) -> tuple[Goal, ...]:
        """Conditions of success, in the order of the problem file."""
        return parse_goals(self.problem.read_text(encoding="utf-8"))

    @property
    def key(self) -> str:
        """Name for files: the benchmark and the index of the task, such as libero_90-03."""
        return f"{self.benchmark}-{self.index:02d}"


def parse_goals(problem: str) -> tuple[Goal, ...]:
    """Reads the conditions of success ``(:goal (And (On a b) ...))`` from `problem`, the text of a BDDL file."""
    goal = re.search(r"\(:goal\s*\(\s*and(.*?)\)\s*\)\s*(?:\(:|\)|$)", problem, re.IGNORECASE | re.DOTALL)
    conditions = re.findall(r"\(\s*(\w+)\s+(\w+)(?:\s+(\w+))?\s*\)", goal[1] + ")" if goal else "")
    return tuple(Goal(relation.lower(), subject, target) for relation, subject, target in conditions)


def find_benchmark(text: str) -> str:
    """Returns the name of a benchmark; the prefix ``libero_``, upper case and hyphens are optional.

    Raises:
        ConfigError: No benchmark has that name; the message names the nearest.
    """
    name = text.lower().replace("-", "_")
    name = name if name.startswith("libero") else f"libero_{name}"
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name[:SHOWN], BENCHMARKS, n=2, cutoff=0.4)
        raise ConfigError(
            f"benchmark={shortened(text)} is unknown. "
            + (f"Nearest: {', '.join(near)}." if near else f"Available: {', '.join(BENCHMARKS)}.")
        )
    return name


@cache
def benchmark_tasks(benchmark: str) -> tuple[LiberoTask, ...]:
    """Returns the tasks of a benchmark in their published order.

    Raises:
        LiberoNotInstalled: LIBERO is not installed.
    """
    suite, problems = _suite(benchmark), _folder("bddl_files")
    tasks = []
    for index in range(suite.n_tasks):
        task = suite.get_task(index)
        file = problems / task.problem_folder / task.bddl_file
        tasks.append(LiberoTask(benchmark, index, task.name, task.language, file))
    return tuple(tasks)


def find_task(benchmark: str, text: str) -> LiberoTask:
    """Returns a task by its number in the benchmark, its name, or its instruction.

    Raises:
        ConfigError: The task is unknown; the message names the nearest.
        LiberoNotInstalled: LIBERO is not installed.
    """
    tasks = benchmark_tasks(benchmark)
    shown = shortened(text)
    if text.isascii() and text.isdigit():
        if int(text) >= len(tasks):
            raise ConfigError(
                f"tasks={shown}: {benchmark} has {len(tasks)} tasks, numbered from 0. Write {len(tasks) - 1} or less."
            )
        return tasks[int(text)]
    name = text.replace(" ", "_")
    matches = [task for task in tasks if name in (task.name, task.instruction.replace(" ", "_"))]
    if not matches:
        near = difflib.get_close_matches(name[:SHOWN], [task.name for task in tasks], n=3, cutoff=0.3)
        fix = f"Nearest: {', '.join(near)}." if near else f"Write a number from 0 to {len(tasks) - 1}."
        raise ConfigError(f"Unknown task tasks={shown} of {benchmark}. {fix}")
    return matches[0]


def published_states(task: LiberoTask) -> list[Any]:
    """Returns the published initial states of a task: flat arrays of time, positions and velocities."""
    with contextlib.redirect_stdout(io.StringIO()):
        return list(_suite(task.benchmark).get_task_init_states(task.index))


@cache
def _suite(benchmark: str) -> Any:
    try:
        from libero.libero import benchmark as benchmarks
    except ImportError as error:
        raise LiberoNotInstalled(f"LIBERO is not installed ({error}). Write {INSTALL}.") from error
    with contextlib.redirect_stdout(io.StringIO()):  # the package prints the task order
        return benchmarks.get_benchmark(benchmark)(0)


def _folder(name: str) -> Path:
    from libero.libero import get_libero_path

    return Path(get_libero_path(name)).resolve()
