"""metaworld: SAC experts, one network that knows the task from the trajectory, and a student that learns from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from powerband.algos.distill import DistillConfig
from powerband.algos.imitate import ImitateConfig
from powerband.algos.represent import RepresentConfig
from powerband.algos.sac import SAC, SACConfig
from powerband.algos.student import StudentConfig
from powerband.core.config import ConfigError, RunConfig
from powerband.core.flags import at_least
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.types import EnvSpec, TensorSpec
from powerband.envs.metaworld.env import Backend, Tasks
from powerband.envs.metaworld.tasks import ACTION, MT10, OBS, TEN, task_named
from powerband.loops.off_policy import OffPolicyConfig
from powerband.loops.offline import OfflineConfig
from powerband.recipes.metaworld_words import RENAMED as RENAMED
from powerband.recipes.metaworld_words import WORDS as WORDS

describe = "Meta-World: SAC experts, trajectory transformer, collective policy, student; each stage a command"
BUDGETS = {
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
"""Environment steps that an expert of a task takes, as published."""
OTHER_BUDGET = 1_000_000


@dataclass(frozen=True)
class CollectConfig:
    interval: int = 10_000
    """Environment steps, over all ranks, between two samplings of the newest transitions for distillation; 0 is
    never."""
    samples: int = 800
    """Newest transitions that are taken each time, over all ranks."""
    size: int = 1_000_000
    """Transitions kept for distillation, over all ranks; the oldest give way."""


@dataclass(frozen=True)
class Config:
    task: str = "reach"
    """A task of Meta-World, such as door-open; or mt10, ten tasks at once with their one-hot code (expert)."""
    tasks: tuple[str, ...] = TEN
    """Tasks of the stages that take several: represent, distill, evaluate, pipeline."""
    project: str = "runs/metaworld"
    """Folder in which the stages leave what the next ones need."""
    backend: Backend = "auto"
    """What steps: threads (MuJoCo in threads of this process, bit for bit as the package; the ten tasks), envpool,
    workers (the metaworld package in worker processes), or auto: the first that is installed and has the task."""
    num_workers: int = -1
    """Worker processes, or threads, of each rank; -1 is one a core, 0 (workers) steps in this process."""
    horizon: int = 400
    """Steps of an episode; its end is a truncation."""
    reward_version: Literal["v1", "v2"] = "v2"
    """Of Meta-World's rewards; v1 needs backend=workers and is not there for all tasks."""
    eval_episodes: int = 10
    """Episodes of an evaluation during training (eval_interval)."""
    final_episodes: int = 100
    """Episodes of the evaluation at the end of a stage: the 50 goals in turn."""
    stop_after: int = 80
    """An expert ends early when so many training episodes in a row succeeded, over all environments; 0 never."""
    teacher: Literal["expert", "scripted"] = "expert"
    """Who labels in online_distill: the expert, or Meta-World's own hand-written policy."""
    expert_steps: int = 0
    """Environment steps of expert; 0 is what the task is known to take."""
    online_steps: int = 60_000
    """Environment steps of online_distill."""
    represent_updates: int = 10_000
    """Updates of represent."""
    student_steps: int = 100_000
    """Environment steps of student and student_finetune."""
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=0))
    off_policy: OffPolicyConfig = field(
        default_factory=lambda: OffPolicyConfig(
            num_envs=1, global_batch_size=512, replay_size=140_000, warmup=5_000, random_steps=5_000
        )
    )
    sac: SACConfig = field(default_factory=lambda: SACConfig(policy_interval=2, target_interval=2))
    collect: CollectConfig = field(default_factory=CollectConfig)
    imitate: ImitateConfig = field(default_factory=ImitateConfig)
    represent: RepresentConfig = field(default_factory=RepresentConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    student: StudentConfig = field(default_factory=StudentConfig)

    def simulated(self) -> Tasks:
        """What the environments simulate."""
        return Tasks(self.task, self.horizon, self.reward_version, self.backend)


def settle(config: Config, stage: str) -> Config:
    """The same with its task by the name that Meta-World knows, and with the budget of its stage.

    Raises:
        ConfigError: A task that there is not.
    """
    task = config.task if config.task == MT10 else task_named(config.task)[0]
    tasks = tuple(task_named(each)[0] for each in config.tasks)
    batch = config.offline.global_batch_size
    budgets = {
        "expert": config.expert_steps or BUDGETS.get(task, OTHER_BUDGET),
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
    """What the user should be told about the words of a configuration that is not settled yet."""
    words = [word for word in (config.task, *config.tasks) if word != MT10]
    return [said for said in dict.fromkeys(task_named(word)[1] for word in words) if said]


def check(config: Config, world_size: int) -> None:
    """Refuses sizes that do not divide by the ranks or the tasks, before any rank is started."""
    config.off_policy.check(world_size)
    config.offline.check(world_size)
    config.simulated().rows(config.off_policy.num_envs // world_size)
    if config.num_workers > config.off_policy.num_envs // world_size:
        raise ConfigError(
            f"num_workers={config.num_workers} are of each rank, and each of {world_size} rank(s) has "
            f"{config.off_policy.num_envs // world_size} environments. Write num_workers=-1, or as many or less."
        )


def networks(config: Config, device: Any, precision: Precision) -> tuple[Any, EnvSpec, Any]:
    """A new expert of a settled configuration, what it sees, and its loop's sizes; `doctor` times it."""
    bound = torch.ones(ACTION)
    width = OBS + len(TEN) * (config.task == MT10)
    spec = EnvSpec(obs=TensorSpec((width,)), action=TensorSpec((ACTION,)), low=-bound, high=bound)
    return SAC(spec, config.sac, device, precision, NoiseSource(0, device)), spec, config.off_policy


def _stage(name: str) -> Any:
    """A stage, imported when it runs: the simulators and figures of the others stay out."""

    def run_stage(config: Config, run: Any) -> dict | None:
        module = "metaworld_pipeline" if name == "pipeline" else "metaworld_stages"
        return getattr(import_module(f"powerband.recipes.{module}"), name)(config, run)

    run_stage.__name__ = name
    return run_stage


@dataclass(frozen=True)
class Evaluation:
    """What `powerband eval` can be told about a run of expert or student."""

    episodes: int = 100
    """Episodes of each task; the 50 goals in turn."""
    policies: tuple[Literal["policy", "random", "scripted"], ...] = ("policy",)
    """Who acts: the run's policy, actions drawn at random, Meta-World's own hand-written policies."""
    video: bool = True
    """Film an episode of each task with Meta-World's own renderer, and save a picture of its end."""
    size: int = 256
    """Pixels of a square frame."""

    def __post_init__(self) -> None:
        at_least(self, episodes=1, size=16)


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Plays the exported policy of a run without exploring."""
    from powerband.recipes import metaworld_score

    return metaworld_score.evaluate_run(config, folder, options)


NAMES = ("expert", "online_distill", "represent", "distill", "evaluate", "student", "student_finetune", "pipeline")
STAGES = {name: _stage(name) for name in NAMES}
DEFAULT_STAGE = "expert"
VARIANTS = {
    "single": {},
    "cpu": {  # half the rows of `single` in half the updates, in bf16 where that pays: a fifth of the time
        "run.gpus": "none",
        "run.threads": 1,
        "run.precision": "auto",
        "off_policy.num_envs": 4,
        "off_policy.global_batch_size": 256,
        "off_policy.update_interval": 4,
        "off_policy.updates_per_interval": 2,
        "off_policy.anneal_from": 0.5,
        "sac.policy_interval": 1,
        "sac.target_interval": 1,
        "sac.obs_scale": 5.0,
        "sac.gamma": 0.95,
        "sac.critic_lr": 1e-3,
        "stop_after": 0,  # rates that fall need the whole budget; 80 successes with noise are not yet 80 without
        "represent_updates": 1_000,
        "student.bonus": 10.0,  # the published 1 for 4,000 steps is over before the random actions are
        "student.hold_steps": 20_000,
    },
    "gpu-server": {
        "off_policy.num_envs": 16,
        "off_policy.global_batch_size": 2048,
        "off_policy.replay_size": 500_000,
        "off_policy.update_interval": 16,
        "offline.global_batch_size": 2048,
        "collect.interval": 5_000,
        "collect.samples": 1_600,
        "collect.size": 5_000_000,
        "sac.actor_lr": 1e-3,
        "sac.critic_lr": 1e-3,
        "sac.policy_interval": 1,
        "sac.target_interval": 1,
        "run.eval_interval": 2_000,
        "run.save_interval": 10_000,
        "run.precision": "bf16",
    },
    "mt10": {
        "task": MT10,
        "stop_after": 0,
        "off_policy.num_envs": 10,
        "off_policy.global_batch_size": 1280,
        "off_policy.replay_size": 1_000_000,
        "off_policy.update_interval": 10,
        "off_policy.updates_per_interval": 1,
        "off_policy.warmup": 10_000,
        "off_policy.random_steps": 10_000,
        "sac.hidden": (400, 400, 400),
        "collect.interval": 0,
    },
    "smoke": {
        "tasks": ("reach", "drawer-close"),
        "run.threads": 1,
        "horizon": 50,
        "final_episodes": 4,
        "stop_after": 0,
        "expert_steps": 1_200,
        "online_steps": 800,
        "imitate.teacher_from": 500,
        "represent_updates": 30,
        "represent.net.length": 6,
        "represent.net.width": 16,
        "represent.net.layers": 1,
        "represent.net.heads": 4,
        "offline.global_batch_size": 64,
        "student_steps": 600,
        "off_policy.num_envs": 2,
        "off_policy.global_batch_size": 64,
        "off_policy.replay_size": 4_000,
        "off_policy.warmup": 200,
        "off_policy.random_steps": 200,
        "collect.interval": 200,
        "collect.samples": 100,
        "distill.actor_updates": 100,
        "distill.critic_updates": 50,
        "student.hold_steps": 200,
        "student.fade_steps": 200,
    },
}
VARIANTS["mt10-cpu"] = VARIANTS["mt10"] | {  # what `cpu` sets, and 64 rows a task in an update for ten steps
    "run.gpus": "none",
    "run.threads": 1,
    "run.precision": "auto",
    "expert_steps": 600_000,
    "off_policy.global_batch_size": 640,
    "off_policy.anneal_from": 0.5,
    "sac.policy_interval": 1,
    "sac.target_interval": 1,
    "sac.obs_scale": 5.0,
    "sac.gamma": 0.95,
}
