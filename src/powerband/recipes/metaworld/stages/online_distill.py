"""Stage online_distill: records transitions that a learning policy visits, with the labels of a teacher.

A temporary policy acts while it imitates the teacher; then the teacher acts. The teacher labels all transitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.core.errors import ConfigError
from powerband.core.run.run import Run
from powerband.loops.config import OffPolicyConfig
from powerband.loops.off_policy import off_policy
from powerband.recipes.metaworld.algos.imitate import ImitationLearner
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.gymnasium_env import scripted_policy
from powerband.recipes.metaworld.env.tasks import TASK_SETS
from powerband.recipes.metaworld.project_folder import load_expert
from powerband.recipes.metaworld.stages.rank_setup import make_training_env
from powerband.recipes.metaworld.transitions.sampler import add_labels, order_by_env, write_transitions

SCRIPTED_LOG_STD = -2.0
"""Label of the log standard deviation if the teacher is scripted and has none."""


def online_distill(config: Config, run: Run) -> dict[str, Any]:
    """Records transitions of one task while a policy learns to imitate its teacher, with the labels of the teacher.

    The teacher is the task's trained expert, or Meta-World's scripted policy. The labels describe its policy and value.

    Returns:
        {"rows": number of recorded transitions over all ranks}; an empty dict if a signal ended the run.

    Raises:
        ConfigError: The task is mt10 or mt50.
    """
    if config.task in TASK_SETS:
        raise ConfigError(
            f"task={config.task}: online_distill records one task at a time. Write task=reach, for example."
        )
    expert = load_expert(config, config.task, run.device) if config.teacher == "expert" else None
    teacher = scripted_teacher(config.task) if expert is None else expert_teacher(expert)
    env = make_training_env(config, run)
    try:
        learner = ImitationLearner(config.imitate, teacher, run.context)
        off_policy(run, env, learner, loop_sizes(config, run.ranks.world_size))
        if run.received_signal:
            return {}
        replay = run.registered("replay")
        newest = {name: leaf.cpu() for name, leaf in replay.newest(len(replay)).items()}
        rows = order_by_env(newest, env.num_envs)
    finally:
        env.close()
    if expert is not None:
        rows = add_labels(rows, expert)
    else:
        mu = torch.cat([teacher(part) for part in rows["obs"].split(1024)])
        unknown = torch.full((len(mu),), float("nan"))
        rows |= {"mu": mu, "log_std": torch.full_like(mu, SCRIPTED_LOG_STD), "q_target": unknown}
    gamma = config.sac.gamma if expert is None else expert.config.gamma
    write_transitions(config, run, "online", rows, config.teacher, gamma)
    return {"rows": len(rows["obs"]) * run.ranks.world_size}


def expert_teacher(expert: SAC) -> Callable[[Tensor], Tensor]:
    """Returns a function from N observations (N, 39) to the mean actions (N, 4) of an expert."""
    return lambda obs: expert.act(obs, None, explore=False)[0]


def scripted_teacher(task: str) -> Callable[[Tensor], Tensor]:
    """Returns a function from N observations (N, 39) to the actions (N, 4) of Meta-World's scripted policy."""
    policy = scripted_policy(task)

    def act(obs: Tensor) -> Tensor:
        return torch.stack([torch.from_numpy(policy(row)).float() for row in obs.cpu().numpy()]).to(obs.device)

    return act


def loop_sizes(config: Config, world_size: int) -> OffPolicyConfig:
    """Returns the settings of the off-policy loop for the stage online_distill.

    The replay buffer is large enough for every step of the run. `ImitateConfig` sets the numbers of updates and of
    random actions. Options of SAC's returns do not apply: the temporary policy learns actions alone, and the recorded
    rewards are unchanged.

    Args:
        config: A finalized configuration.
        world_size: Number of ranks, the processes of the run.
    """
    sizes = config.off_policy
    row = sizes.num_envs * world_size
    return replace(
        sizes,
        replay_size=-(-config.run.env_steps // row) * row,
        update_interval=config.imitate.steps_per_update,
        updates_per_interval=1,
        learning_starts=config.imitate.first_random_steps,
        random_steps=config.imitate.first_random_steps,
        clip_reward=0.0,
        normalize_reward=False,
        n_step=1,
        priority_exponent=0.0,
        importance_exponent=OffPolicyConfig.importance_exponent,
        hindsight=0,
        anneal_from=1.0,
        lr_warmup_updates=0,
    )
