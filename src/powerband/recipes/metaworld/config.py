"""Defines the options of the recipe metaworld for training and evaluation, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from powerband.algos.settings import SACConfig
from powerband.core.config import RunConfig, stored_config
from powerband.core.config.ranges import (
    FilePath,
    NoiseScale,
    Pixels,
    Range,
    Seed,
    Share,
    Size,
    SizeOrZero,
    Workers,
    check_ranges,
)
from powerband.core.config.saved import named_run
from powerband.core.errors import ConfigError
from powerband.loops.config import OfflineConfig, OffPolicyConfig
from powerband.recipes.metaworld.env.tasks import MT10_TASKS, TASK_SETS, Backend, TaskConfig, resolve_task
from powerband.recipes.metaworld.old_names import OLD_NAMES
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
    "mt10": 20_000_000,
    "mt50": 100_000_000,
}
"""Task -> environment steps of its expert, from the published configuration that metaworld reproduces."""
OTHER_EXPERT_STEPS = 1_000_000
"""Environment steps of an expert of a task that `EXPERT_STEPS` does not contain."""


@dataclass(frozen=True)
@check_ranges
class Config:
    task: str = "reach"
    """A task of Meta-World, such as door-open. The stage expert also accepts mt10 and mt50: ten or fifty tasks at once,
    each with its one-hot code."""
    tasks: tuple[str, ...] = MT10_TASKS
    """Tasks of the stages that use several tasks: represent, distill, evaluate and pipeline."""
    project: FilePath = "runs/metaworld"
    """Project folder: each stage saves its output there, and later stages read it."""
    backend: Backend = "auto"
    """Backend that steps the simulations: threads (MuJoCo in threads of this process; states are
    bit-identical to the metaworld package), envpool (the EnvPool package), workers (the metaworld package in worker
    processes), or auto: the first of these that is installed and has the task."""
    num_workers: Workers = -1
    """Worker processes or threads of each rank; -1 starts one per core of the rank; 0 with backend=workers steps in the
    training process."""
    horizon: Annotated[int, Range(at_least=1, at_most=100000)] = 400
    """Steps of an episode, at which it is truncated."""
    reward_version: Literal["v1", "v2"] = "v2"
    """Version of Meta-World's rewards; v1 needs backend=workers and does not exist for every task."""
    eval_episodes: Size = 10
    """Episodes of an evaluation during training, on other goals than those of the final evaluation;
    run.eval_share and run.eval_interval set how often."""
    final_episodes: SizeOrZero = 100
    """Episodes of the evaluation at the end of a stage, which cycles through the 50 goals."""
    stop_after_successes: SizeOrZero = 80
    """An expert stops early after this many successful training episodes in a row, over the environments of one rank; 0
    never stops early."""
    teacher: Literal["expert", "scripted"] = "expert"
    """Policy that labels the transitions of the stage online_distill: the expert, or Meta-World's scripted policy."""
    demo_share: Share = 0.0
    """Share of the training episodes of an expert in which Meta-World's scripted policy acts. Its steps count as
    environment steps, and its successes in stop_after_successes."""
    demo_noise: NoiseScale = 0.2
    """Standard deviation of the noise on the actions of demo_share, which are in [-1, 1]."""
    demo_handover: SizeOrZero = 0
    """Last step at which the expert takes over an episode that the scripted policy began. Each of these episodes draws
    its own step between 0 and this number. 0: the scripted policy acts until the end. Needs demo_share."""
    expert_steps: SizeOrZero = 0
    """Environment steps of the stage expert; 0 uses the published number of the task."""
    online_steps: Size = 60_000
    """Environment steps of the stage online_distill."""
    represent_updates: Size = 10_000
    """Updates of the stage represent."""
    student_steps: Size = 100_000
    """Environment steps of the stages student and student_finetune."""
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

    def simulated_tasks(self) -> TaskConfig:
        """Returns the part of this configuration that determines the environments, such as task and episode length."""
        return TaskConfig(self.task, self.horizon, self.reward_version, self.backend)


@dataclass(frozen=True)
@check_ranges
class Evaluation:
    """Options of ``powerband eval`` for a run of the stage expert or student."""

    episodes: Size = 100
    """Episodes per task, which cycle through the 50 goals."""
    seed: Seed = 20_000
    """Seed of the environments and of random actions, another than that of the evaluations during training; the goals
    are the 50 fixed ones."""
    policies: tuple[Literal["policy", "random", "scripted"], ...] = ("policy",)
    """Policies to evaluate: the run's policy, uniformly random actions, Meta-World's scripted policies."""
    video: bool = True
    """Record a video of one episode per task with Meta-World's renderer, and save its last frame as an image."""
    gpus: str = "none"
    """Device of the policy: none for the CPU, or the index of one GPU, such as 0."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the networks."""
    workers: Workers = 0
    """Worker processes of the simulations; -1 starts one per core, 0 steps in this process."""
    size: Pixels = 256
    """Width and height of a frame in pixels."""


def finalize(config: Config, stage: str) -> Config:
    """Returns a copy of the configuration with resolved task names and the length of the run.

    Task names lose their version: "reach-v2" becomes "reach". If ``run.env_steps`` is 0, it becomes the number of
    environment steps of `stage`. With ``run.resume``, it also becomes this number if the user changes the option that
    sets it, such as ``student_steps``, and not ``run.env_steps`` itself.

    Args:
        config: Configuration as the user wrote it.
        stage: Name of the stage that will run, such as "expert".

    Raises:
        ConfigError: A task is unknown, demo_handover has no demo_share, the stage does not support a setting, or a
            resumed run of online_distill has another number of steps than before.
    """
    if stage == "pipeline" and config.run.env_steps > 1:  # a saved configuration has 1
        raise ConfigError(
            f"run.env_steps={config.run.env_steps} is not supported in the stage pipeline, which has no steps of its "
            f"own. Write expert_steps=, online_steps= or student_steps= for the steps of its stages."
        )
    if config.demo_handover and not config.demo_share:
        raise ConfigError(
            f"demo_handover={config.demo_handover} has no effect with demo_share=0, because the scripted policy "
            f"acts in no episode. Write demo_share=0.5, or remove demo_handover."
        )
    scaled = [name for name in ("normalize_reward", "clip_reward") if getattr(config.off_policy, name)]
    if scaled and stage in ("expert", "pipeline"):
        raise ConfigError(
            f"off_policy.{scaled[0]} is not supported in the stage {stage}: the labels of an expert would be in other "
            f"units than the rewards that it records, and later stages use both. Leave it out."
        )
    if not config.tasks and stage in ("represent", "distill", "pipeline"):
        raise ConfigError(f"tasks= is empty, and the stage {stage} needs experts. Write tasks=reach,push or others.")
    task = config.task if config.task in TASK_SETS else resolve_task(config.task)[0]
    tasks = tuple(resolve_task(each, "tasks")[0] for each in config.tasks)
    config = replace(config, task=task, tasks=tasks)
    env_steps = config.run.env_steps or _stage_steps(config, stage)
    if config.run.resume:
        env_steps = _resumed_steps(config, stage)
    return replace(config, run=replace(config.run, env_steps=env_steps))


def _stage_steps(config: Config, stage: str) -> int:
    """Returns the environment steps of `stage` by its own options; task names in `config` have no version.

    In the offline stages represent and distill, each sampled transition counts as one environment step.
    """
    batch = config.offline.global_batch_size
    budgets = {
        "expert": config.expert_steps or EXPERT_STEPS.get(config.task, OTHER_EXPERT_STEPS),
        "online_distill": config.online_steps,
        "represent": config.represent_updates * batch,
        "distill": (config.distill.actor_updates + config.distill.critic_updates) * batch,
        "evaluate": 1,
        "student": config.student_steps,
        "student_finetune": config.student_steps,
        "pipeline": 1,
    }
    return budgets[stage]


def _resumed_steps(config: Config, stage: str) -> int:
    """Returns the environment steps of a run that ``config.run.resume`` names, which are compared with its saved ones.

    Raises:
        ConfigError: The stage is online_distill, and the number differs from the saved one.
    """
    saved = stored_config(named_run(config.run.resume, "resume"), Config, OLD_NAMES)
    own = _stage_steps(config, stage)
    env_steps = config.run.env_steps or own
    if env_steps == saved.run.env_steps and own != _stage_steps(saved, stage):
        env_steps = own
    if stage == "online_distill" and env_steps != saved.run.env_steps:
        raise ConfigError(
            f"env_steps={env_steps} differs from env_steps={saved.run.env_steps}, with which this run of "
            f"online_distill started; its replay buffer has one row for each of these steps. Leave out env_steps and "
            f"online_steps, or start a new run with online_steps={env_steps}."
        )
    return env_steps


def notices(config: Config) -> list[str]:
    """Returns messages for the user about task names of older Meta-World versions, such as "reach-v2".

    Args:
        config: Configuration as the user wrote it, before `finalize` removes the versions.
    """
    named = [("task", config.task), *(("tasks", name) for name in config.tasks)]
    messages = dict.fromkeys(resolve_task(name, option)[1] for option, name in named if name not in TASK_SETS)
    return [message for message in messages if message]


def check(config: Config, world_size: int) -> None:
    """Checks that batch sizes and numbers of environments divide by the number of ranks and of tasks.

    It also checks that a rank, which is one process of the training, has no more workers than environments.

    Args:
        config: A finalized configuration.
        world_size: Number of ranks.

    Raises:
        ConfigError: A setting is invalid.
    """
    config.off_policy.check(world_size)
    config.offline.check(world_size)
    if config.sac.normalize_obs:
        raise ConfigError(
            "sac.normalize_obs=true is not supported by metaworld, whose stages exchange actors without statistics. "
            "Write sac.normalize_obs=false; sac.obs_scale is a factor on observations."
        )
    num_envs = config.off_policy.num_envs // world_size
    config.simulated_tasks().envs_per_task(num_envs)  # a list of all environments could fill the memory
    if config.num_workers > num_envs:
        raise ConfigError(
            f"num_workers={config.num_workers} is too large: it counts per rank, and each of {world_size} rank(s) has "
            f"{num_envs} environments. Write num_workers={num_envs} or less, or -1 for the automatic choice."
        )
