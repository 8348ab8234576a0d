"""Rows of the learning suite: every task with every algorithm, system and seed, in the order of their worth.

A row is one training run with its evaluations. The order is seed 0 of all rows, then seed 1, and so on; within a seed,
short runs come first. A run that is stopped early therefore leaves whole seeds of the cheap tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from powerband.recipes.gym.tuned import TUNED

SYSTEMS = ("powerband", "powerband-tuned", "sb3-zoo", "sb3")
"""powerband with its general defaults and with the settings tuned for the task; Stable-Baselines3 with the
hyper-parameters of its Zoo and with its defaults."""
POINTS = 20
"""Evaluations of a run, at equal distances; the last one is at the end of the budget."""
EPISODES, FINAL_EPISODES = 20, 100
"""Episodes of an evaluation, and of the final one."""
EVAL_SEED, FINAL_SEED = 10_000, 20_000
"""Seeds of the environments of evaluations; training uses other seeds."""


@dataclass(frozen=True)
class Task:
    """One environment with one algorithm and a budget.

    Attributes:
        name: Name of the environment in tables and files.
        env_id: Gymnasium id; ``module:Id`` imports a module of the folder envs first.
        algo: Algorithm: ppo, sac, td3 or dqn.
        steps: Budget in environment steps.
        seeds: Number of seeds; they are 0, 1, ...
        minutes: Expected core-minutes of one run of Stable-Baselines3, for the order and for the cost of the suite.
        zoo: Whether the Zoo has hyper-parameters for it.
    """

    name: str
    env_id: str
    algo: str
    steps: int
    seeds: int
    minutes: float
    zoo: bool = True

    @property
    def key(self) -> str:
        """Name of the task with its algorithm, such as ``Hopper-v5-ppo``."""
        return f"{self.name}-{self.algo}"


@dataclass(frozen=True)
class Row:
    """One run: a task, one of `SYSTEMS` and a seed."""

    task: Task
    system: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the result file, without its ending."""
        return f"{self.task.key}-{self.system}-{self.seed}"


def _task(name: str, algo: str, steps: int, seeds: int, minutes: float) -> Task:
    return Task(name, name, algo, steps, seeds, minutes)


LOCOMOTION = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5")
TASKS = (
    _task("CartPole-v1", "ppo", 100_000, 10, 1),
    _task("CartPole-v1", "dqn", 50_000, 10, 1),
    _task("Acrobot-v1", "ppo", 200_000, 10, 2),
    _task("Acrobot-v1", "dqn", 100_000, 10, 3),
    _task("Pendulum-v1", "ppo", 100_000, 10, 1.5),
    _task("Pendulum-v1", "sac", 20_000, 10, 4),
    _task("Pendulum-v1", "td3", 20_000, 10, 3),
    _task("MountainCarContinuous-v0", "ppo", 20_000, 10, 1.5),
    _task("MountainCarContinuous-v0", "sac", 50_000, 10, 12),
    _task("LunarLander-v3", "dqn", 100_000, 10, 3),
    _task("LunarLander-v3", "ppo", 500_000, 10, 5),
    *(_task(name, "ppo", 1_000_000, 5, 12) for name in LOCOMOTION),
    Task("CameraReach", "camera_reach:CameraReach-v0", "ppo", 200_000, 3, 15, zoo=False),
    Task("CameraReach", "camera_reach:CameraReach-v0", "sac", 10_000, 3, 15, zoo=False),
    *(_task(name, algo, 100_000, 3, 20) for name in LOCOMOTION for algo in ("sac", "td3")),
    *(
        Task(f"MinAtar-{game}", f"minatar_planes:MinAtar/{game}-v1", algo, 1_000_000, 3, 25)
        for game in ("Breakout", "SpaceInvaders")
        for algo in ("ppo", "dqn")
    ),
)


def all_rows() -> Iterator[Row]:
    """Yields every row in the order in which they are worth running."""
    for seed in range(max(task.seeds for task in TASKS)):
        for task in sorted((task for task in TASKS if seed < task.seeds), key=lambda task: task.minutes):
            for system in SYSTEMS:
                if system == "sb3-zoo" and not task.zoo:
                    continue
                if system == "powerband-tuned" and (task.env_id, task.algo) not in TUNED:
                    continue
                yield Row(task, system, seed)


def find_row(name: str) -> Row:
    """Returns the row of a name."""
    return next(row for row in all_rows() if row.name == name)


def powerband_settings(row: Row) -> list[str]:
    """Returns the arguments of ``powerband train gym`` that select the hyper-parameters of a row."""
    return ["hyper=tuned" if row.system == "powerband-tuned" else "hyper=default"]
