"""Trains learners on a Gymnasium environment, with simulators in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from powerband.core.config import stored_config
from powerband.core.config.sizes import per_rank, scaled_lr
from powerband.core.rank_context import RankContext
from powerband.core.recipe import with_algorithms
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.core.run.state_registry import restore_learner
from powerband.data.types import OnPolicyLearner
from powerband.loops.off_policy import off_policy
from powerband.loops.on_policy import on_policy
from powerband.loops.support.env_failures import report_env_failure
from powerband.recipes.gym.config import ALGORITHMS, OLD_NAMES, Config
from powerband.recipes.gym.environments import make_env, make_goal_reward
from powerband.recipes.gym.evaluation import play, summary
from powerband.recipes.gym.learners import build_learner, make_learner

EVALUATOR = "powerband.recipes.gym.train:open_evaluator"


def train(config: Config, run: Run) -> None:
    """Trains the algorithm ``config.algo`` on the environment ``config.env_id``, and exports the trained policy.

    `run` provides the run folder, the device and the ranks.
    """
    ranks = run.ranks
    num_envs = per_rank("num_envs", config.loop.num_envs, ranks.world_size)

    report = partial(report_env_failure, run)
    env = make_env(config, num_envs, config.num_workers, config.run.seed, ranks.rank, run.device, report)
    try:
        settings, line = scaled_lr(getattr(config, config.algo), config.run.lr_scale, ranks.world_size)
        run.describe({"learning rates": line})
        learner = make_learner(replace(config, **{config.algo: settings}), env.spec, run.context)
        episodes = config.eval_episodes
        hooks = RunHooks(lambda: summary(play(config, learner, episodes, run.device)), evaluator=EVALUATOR)
        if ALGORITHMS[config.algo].loop == "off_policy":
            goals = make_goal_reward(config) if config.off_policy.hindsight else None
            off_policy(run, env, learner, config.off_policy, hooks=hooks, goal_reward=goals)
        else:
            on_policy(run, env, cast(OnPolicyLearner, learner), config.on_policy, hooks=hooks)
        run.export_policy(learner.policy_state())
    finally:
        env.close()


def open_evaluator(run_dir: Path) -> Callable[[Path], dict[str, float]]:
    """Returns the evaluation of the run in `run_dir` for a process of its own: (checkpoint) -> results."""
    config = stored_config(run_dir, with_algorithms(Config, ALGORITHMS), OLD_NAMES)
    learner, _, _ = build_learner(config, RankContext.single())

    def evaluate_checkpoint(checkpoint: Path) -> dict[str, float]:
        restore_learner(checkpoint, learner)
        return summary(play(config, learner, config.eval_episodes))

    return evaluate_checkpoint
