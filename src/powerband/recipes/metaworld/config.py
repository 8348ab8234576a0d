"""Configuration and options of metaworld. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from powerband.algos.settings import SACConfig
from powerband.core.config import RunConfig, at_least
from powerband.core.errors import ConfigError
from powerband.loops.config import OfflineConfig, OffPolicyConfig
from powerband.recipes.metaworld.env.tasks import MT10, MT10_TASKS, Backend, TaskConfig, resolve_task
from powerband.recipes.metaworld.settings import (
    CollectConfig,
    DistillConfig,
    ImitateConfig,
    RepresentConfig,
    StudentConfig,
)

EXPERT_STEPS = {
    "reach": 100_000,
    "push": 900_000,
    "pick-place": 2_400_000,
    "door-open": 1_000_000,
    "drawer-open": 500_000,
    "drawer-close": 200_000,
    "button-press-topdown": 500_000,
    "peg-insert-side": 1_300_000,
    "window-open": 300_000,
    "window-close": 400_000,
    MT10: 20_000_000,
}
"""Environment steps of an expert by task, as published."""
OTHER_EXPERT_STEPS = 1_000_000
"""Environment steps of an expert of any other task."""


@dataclass(frozen=True)
class Config:
    task: str = "reach"
    """A task of Meta-World, such as door-open; or mt10, which is ten tasks at once with their one-hot code (expert)."""
    tasks: tuple[str, ...] = MT10_TASKS
    """Tasks of the stages that use several: represent, distill, evaluate, pipeline."""
    project: str = "runs/metaworld"
    """Folder for the output of each stage, which later stages read."""
    backend: Backend = "auto"
    """Backend that steps the simulations: threads (MuJoCo in threads of this process, results bit-identical to the
    package; ten tasks), envpool, workers (the metaworld package in worker processes), or auto: the first that is
    installed and has the task."""
    num_workers: int = -1
    """Worker processes or threads of each rank; -1 starts one per core, 0 (workers) steps in this process."""
    horizon: int = 400
    """Steps of an episode, at which it is truncated."""
    reward_version: Literal["v1", "v2"] = "v2"
    """Version of Meta-World's rewards; v1 needs backend=workers and does not exist for every task."""
    eval_episodes: int = 10
    """Episodes of an evaluation during training (eval_interval)."""
    final_episodes: int = 100
    """Episodes of the evaluation at the end of a stage, which cycles through the 50 goals."""
    stop_after_successes: int = 80
    """An expert stops early after this many successful training episodes in a row, over all environments; 0 never
    stops early."""
    teacher: Literal["expert", "scripted"] = "expert"
    """Policy that labels the data of online_distill: the expert, or Meta-World's scripted policy."""
    expert_steps: int = 0
    """Environment steps of expert; 0 uses the published number of the task."""
    online_steps: int = 60_000
    """Environment steps of online_distill."""
    represent_updates: int = 10_000
    """Updates of represent."""
    student_steps: int = 100_000
    """Environment steps of student and student_finetune."""
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=0))
    off_policy: OffPolicyConfig = field(
        default_factory=lambda: OffPolicyConfig(
            num_envs=1, global_batch_size=512, replay_size=140_000, learning_starts=5_000, random_steps=5_000
        )
    )
    sac: SACConfig = field(default_factory=lambda: SACConfig(policy_interval=2, target_interval=2))
    collect: CollectConfig = field(default_factory=CollectConfig)
    imitate: ImitateConfig = field(default_factory=ImitateConfig)
    represent: RepresentConfig = field(default_factory=RepresentConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    student: StudentConfig = field(default_factory=StudentConfig)

    def __post_init__(self) -> None:
        at_least(self, num_workers=-1, eval_episodes=1, final_episodes=0, stop_after_successes=0, expert_steps=0)

    def simulated_tasks(self) -> TaskConfig:
        """Tasks and backend of the environments."""
        return TaskConfig(self.task, self.horizon, self.reward_version, self.backend)


@dataclass(frozen=True)
class Evaluation:
    """Options of ``powerband eval`` for a run of expert or student."""

    episodes: int = 100
    """Episodes per task, which cycle through the 50 goals."""
    policies: tuple[Literal["policy", "random", "scripted"], ...] = ("policy",)
    """Policies to evaluate: the run's policy, uniformly random actions, Meta-World's scripted policies."""
    video: bool = True
    """Record a video of one episode per task with Meta-World's renderer, and save its last frame as an image."""
    size: int = 256
    """Width and height of a frame in pixels."""

    def __post_init__(self) -> None:
        at_least(self, episodes=1, size=16)


def finalize(config: Config, stage: str) -> Config:
    """Resolves the names of tasks, and sets the budget of the stage unless ``env_steps`` does.

    Raises:
        ConfigError: A task is unknown.
    """
    task = config.task if config.task == MT10 else resolve_task(config.task)[0]
    tasks = tuple(resolve_task(each)[0] for each in config.tasks)
    batch = config.offline.global_batch_size
    budgets = {
        "expert": config.expert_steps or EXPERT_STEPS.get(task, OTHER_EXPERT_STEPS),
        "online_distill": config.online_steps,
        "represent": config.represent_updates * batch,
        "distill": (config.distill.actor_updates + config.distill.critic_updates) * batch,
        "evaluate": 1,
        "student": config.student_steps,
        "student_finetune": config.student_steps,
        "pipeline": 1,
    }
    run = config.run if config.run.env_steps else replace(config.run, env_steps=budgets[stage])
    return replace(config, task=task, tasks=tasks, run=run)


def notices(config: Config) -> list[str]:
    """Messages about names of tasks in a configuration that is not finalized yet."""
    names = [name for name in (config.task, *config.tasks) if name != MT10]
    messages = dict.fromkeys(resolve_task(name)[1] for name in names)
    return [message for message in messages if message]


def check(config: Config, world_size: int) -> None:
    """Refuses sizes that do not divide by the number of ranks or of tasks, and more workers than environments.

    Raises:
        ConfigError: A size is invalid.
    """
    config.off_policy.check(world_size)
    config.offline.check(world_size)
    num_envs = config.off_policy.num_envs // world_size
    config.simulated_tasks().task_of_each_env(num_envs)
    if config.num_workers > num_envs:
        raise ConfigError(
            f"num_workers={config.num_workers} is a number per rank, and each of {world_size} rank(s) has {num_envs} "
            f"environments. Write num_workers={num_envs} or less, or -1."
        )
