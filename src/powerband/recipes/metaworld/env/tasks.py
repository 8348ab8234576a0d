"""Resolves task names of Meta-World and chooses the simulator backend, without importing torch or a simulator."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from powerband.core.config.texts import SHOWN, shortened
from powerband.core.errors import ConfigError

Backend = Literal["auto", "envpool", "threads", "workers"]
MT10_TASKS = (
    "reach",
    "push",
    "pick-place",
    "door-open",
    "drawer-open",
    "drawer-close",
    "button-press-topdown",
    "peg-insert-side",
    "window-open",
    "window-close",
)
"""The ten tasks of MT10 in their order; the index of a task is its place in the one-hot code."""
MT50_TASKS = tuple(
    """
    assembly basketball bin-picking box-close button-press-topdown button-press-topdown-wall button-press
    button-press-wall coffee-button coffee-pull coffee-push dial-turn disassemble door-close door-lock door-open
    door-unlock hand-insert drawer-close drawer-open faucet-open faucet-close hammer handle-press-side handle-press
    handle-pull-side handle-pull lever-pull pick-place-wall pick-out-of-hole pick-place plate-slide plate-slide-side
    plate-slide-back plate-slide-back-side peg-insert-side peg-unplug-side soccer stick-push stick-pull push push-wall
    push-back reach reach-wall shelf-place sweep-into sweep window-open window-close
    """.split()
)
"""The fifty tasks of MT50, all of Meta-World 3, in the order of the package; a test compares them."""
OTHER_TASKS = tuple(task for task in MT50_TASKS if task not in MT10_TASKS)
"""The forty tasks of MT50 that are not in MT10."""
TASK_SETS = {"mt10": MT10_TASKS, "mt50": MT50_TASKS}
"""Task name that stands for several tasks at once, with their one-hot code behind the observation -> the tasks."""
INSTALL = "pip install 'powerband[metaworld]'"
MAX_HORIZON = 500
"""Largest number of steps of an episode in Meta-World."""
OBS, ACTION, GOALS = 39, 4, 50
"""Entries of an observation and of an action; number of goals of a task."""


class UnknownTask(ConfigError):
    """Raised if Meta-World has no task of the given name."""


class MetaWorldNotInstalled(ConfigError):
    """Raised if Meta-World is not installed; the message contains the command that installs it."""


def resolve_task(name: str, option: str = "task") -> tuple[str, str]:
    """Resolves the name of a task as a user wrote it.

    Args:
        name: "reach", "reach-v3", or "reach-v2" as in older code.
        option: Option that contains the name, for the message.

    Returns:
        The name without a version, and a notice for the user, which may be empty.

    Raises:
        UnknownTask: The message names the nearest tasks.
    """
    base, _, version = name.rpartition("-v")
    task = base if version.isdigit() and base else name
    if task not in MT50_TASKS:
        near = difflib.get_close_matches(task[:SHOWN], MT50_TASKS, n=3, cutoff=0.4)
        raise UnknownTask(
            f"{option}={shortened(name)}: Meta-World has no such task. "
            f"Nearest: {', '.join(near) or ', '.join(MT10_TASKS)}."
        )
    older = version.isdigit() and version != "3"
    return task, f"task={name}: Meta-World 3 has {task}-v3 only, whose rewards are those of v2." if older else ""


def expand_task(task: str) -> tuple[str, ...]:
    """Returns the tasks that a name stands for: ten for ``mt10``, fifty for ``mt50``, otherwise the task itself."""
    return TASK_SETS.get(task, (task,))


def envpool_task_id(task: str) -> str:
    """Returns the name of a task in EnvPool, such as "MetaWorld/DoorOpen-v3" for "door-open"."""
    return "MetaWorld/" + "".join(part.capitalize() for part in task.split("-")) + "-v3"


def envpool_available() -> bool:
    """Returns True if EnvPool is installed and can be imported."""
    try:
        import envpool  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


@dataclass(frozen=True)
class TaskConfig:
    """Tasks of vectorised environments, and the backend that steps them.

    Attributes:
        task: A task, or "mt10" or "mt50" for equal numbers of environments of ten or fifty tasks, with a one-hot task
            code appended to observations.
        horizon: Steps of an episode.
        reward_version: Version of the rewards; EnvPool and threads have v2 only.
        backend: What steps the simulations: ``threads`` of this process, ``envpool``, or ``workers`` (processes).
            ``auto`` takes the first of these that is installed and supports the rewards.
    """

    task: str = "reach"
    horizon: int = 400
    reward_version: str = "v2"
    backend: Backend = "auto"

    @property
    def resolved_backend(self) -> Literal["threads", "envpool", "workers"]:
        """The backend that steps the simulations, after ``auto`` has been resolved.

        Raises:
            ConfigError: The backend is not installed, or does not support the rewards.
        """
        shaped = self.reward_version == "v2"
        if self.backend == "auto":
            if shaped and find_spec("metaworld") is not None:
                return "threads"
            return "envpool" if shaped and envpool_available() else "workers"
        if self.backend != "workers" and not shaped:
            raise ConfigError(
                f"reward_version={self.reward_version}: backend={self.backend} has v2 only. Write backend=workers."
            )
        if self.backend == "envpool" and not envpool_available():
            raise ConfigError(
                "backend=envpool: EnvPool is not installed. Run pip install 'powerband[pool]', or write backend=auto."
            )
        return self.backend

    def task_of_each_env(self, num_envs: int) -> list[str]:
        """Returns the name of the task of each of `num_envs` environments: equal numbers of each task, task by task.

        Raises:
            ConfigError: `num_envs` does not divide by the number of tasks.
        """
        each = self.envs_per_task(num_envs)
        return [name for name in expand_task(self.task) for _ in range(each)]

    def envs_per_task(self, num_envs: int) -> int:
        """Returns how many of `num_envs` environments each task has.

        Raises:
            ConfigError: `num_envs` does not divide by the number of tasks.
        """
        names = expand_task(self.task)
        if num_envs % len(names):
            raise ConfigError(
                f"num_envs={num_envs} on each rank is not divisible by the {len(names)} tasks of {self.task}. "
                f"Write num_envs={max(1, num_envs // len(names)) * len(names)}."
            )
        return num_envs // len(names)
