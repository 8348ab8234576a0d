"""Training of uav: builds missions and learner, and runs the training loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from powerband.core.config import stored_config
from powerband.core.config.sizes import per_rank, scaled_lr
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.loops.on_policy import on_policy
from powerband.loops.support.returns import LearnerReturns
from powerband.recipes.uav.config import OLD_NAMES, Config, algorithm_settings
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.evaluation import training_evaluation
from powerband.recipes.uav.learner import load_learner, make_learner
from powerband.recipes.uav.tensorboard_figures import TensorboardFigures


def train(config: Config, run: Run) -> None:
    """Trains a team of UAVs on simulated missions with the algorithm that `config.algo` names.

    The trained policy is exported at the end.

    Args:
        config: Configuration after `finalize`.
        run: The run: its folder, device, ranks and console.
    """
    loop, world, ranks = config.on_policy, config.world, run.ranks
    missions = per_rank("num_envs", loop.num_envs, ranks.world_size)
    run.console.note(
        "The first start on a machine compiles the simulation of the missions, which takes about a minute."
    )
    env = UavEnv(missions, world, device=run.device, seed=config.run.seed, first_env=ranks.rank * missions)
    settings, rates = scaled_lr(algorithm_settings(config), config.run.lr_scale, ranks.world_size)
    learner = make_learner(config.algo, env.spec, settings, run.context, env.masked_sample)
    run.describe({"learning rates": rates, "missions": mission_sizes(config)})
    hooks = RunHooks(
        evaluate=lambda: training_evaluation(learner, world, config.eval_missions, run.device),
        evaluator="powerband.recipes.uav.train:open_evaluator",
    )
    returns = LearnerReturns(run, learner, loop.gamma, loop.gae_lambda, world.n_agents)
    with TensorboardFigures(run, learner, config) as figures:
        on_policy(run, env, learner, loop, after_update=figures.after_update, returns=returns, hooks=hooks)
    run.export_policy(learner.policy_state())


def open_evaluator(run_dir: Path) -> Callable[[Path], dict[str, float]]:
    """Returns the evaluation of the run in `run_dir` for a process of its own: (checkpoint) -> results."""
    config, device = stored_config(run_dir, Config, OLD_NAMES), torch.device("cpu")
    return lambda path: training_evaluation(load_learner(path, config), config.world, config.eval_missions, device)


def mission_sizes(config: Config) -> str:
    """Returns one line of text: number of UAVs, size of the map, missions per rollout and length of the training.

    The console shows this line when the training starts. `config` is the result of `finalize`.
    """
    world, rollout_steps = config.world, config.on_policy.num_envs * config.on_policy.num_steps
    missions = rollout_steps // world.num_steps
    rollouts = -(-config.run.env_steps // rollout_steps)
    return (
        f"{world.n_agents} UAVs, {world.num_steps} moves, {world.map_cells} x {world.map_cells} cells; "
        f"{rollouts:,} iterations of {missions} missions = {rollouts * missions:,} episodes"
    )
