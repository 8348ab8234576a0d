"""Trains and evaluates learners on a Gymnasium environment, with simulators in worker processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from powerband.core.config import from_json
from powerband.core.config.saved import saved_text
from powerband.core.config.sizes import per_rank, scaled_lr
from powerband.core.rank_context import RankContext
from powerband.core.recipe import load_object, with_algorithms
from powerband.core.run.checkpoint import resolve_resume
from powerband.core.run.run import Run, RunHooks
from powerband.core.run.state_registry import restore_learner
from powerband.data.types import EnvSpec, Learner, OnPolicyLearner
from powerband.envs.adapters.by_id import make_gym
from powerband.envs.adapters.goal_reward import EnvGoalReward
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.workers.supervision import EnvFailure, Supervision
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.loops import evaluate as evaluation
from powerband.loops.off_policy import off_policy
from powerband.loops.on_policy import on_policy
from powerband.nets.observations.encoders import ObsEncoder, needs_encoder
from powerband.recipes.gym.config import ALGORITHMS, OLD_NAMES, Config, Evaluation

EVALUATOR = "powerband.recipes.gym.train:open_evaluator"


def make_env(
    config: Config,
    num_envs: int,
    workers: int,
    seed: int,
    rank: int = 0,
    device: torch.device | str = "cpu",
    on_failure: Callable[[EnvFailure], object] | None = None,
) -> WorkerVecEnv:
    """Creates the environments of one rank (a training process of a distributed run).

    Args:
        config: Configuration of the run, which names the environment and the limits on failures of simulators.
        num_envs: Number of environments on the rank.
        workers: Worker processes of the rank. 0 steps in this process. -1 starts one per core, or two per core for
            double buffering, but at most one per environment.
        seed: Seed of the run.
        rank: Number of the rank.
        device: Device of observations.
        on_failure: Function that is called for each simulator that failed and was restarted; None if there is none.
    """
    if workers < 0:
        double_buffered = ALGORITHMS[config.algo].loop == "on_policy" and config.on_policy.double_buffer
        workers = min(num_envs, (os.cpu_count() or 1) * (2 if double_buffered else 1))
    supervision = Supervision(deadline_s=config.worker_deadline_s) if config.supervise else None
    return GymVecEnv(
        config.env_id,
        num_envs,
        workers,
        device,
        seed,
        first_env=rank * num_envs,
        env_kwargs=config.env_arguments(),
        wrapping=config.wrap,
        supervision=supervision,
        on_failure=on_failure,
    )


def make_goal_reward(config: Config) -> EnvGoalReward:
    """Creates one more environment in this process, whose function computes rewards for relabelled goals.

    Raises:
        ConfigError: The environment has no goals or no vectorised ``compute_reward``.
    """
    return EnvGoalReward(make_gym(config.env_id, config.wrap, **config.env_arguments()))


def make_learner(config: Config, spec: EnvSpec, context: RankContext) -> Learner:
    """Creates the learner (networks and optimisers) of the algorithm ``config.algo``.

    Observations with images or categories pass through an encoder network; others reach the networks directly.

    Args:
        config: Configuration of the run.
        spec: Observations and actions of the environment.
        context: Device, precision and random streams of the rank.
    """
    encoder = ObsEncoder(spec.obs, spec.num_agents, config.image_net) if needs_encoder(spec.obs) else None
    return load_object(ALGORITHMS[config.algo].learner)(spec, getattr(config, config.algo), context, encoder)


def build_learner(config: Config, context: RankContext) -> tuple[Learner, EnvSpec, Any]:
    """Creates a learner (networks and optimisers) without a run, for example for an evaluation.

    Args:
        config: Configuration of the run.
        context: Device, precision and random streams of the learner.

    Returns:
        The learner, the observations and actions of its environment, and the settings of its training loop.
    """
    env = make_env(config, 1, 0, config.run.seed)
    env.close()
    return make_learner(config, env.spec, context), env.spec, config.loop


def train(config: Config, run: Run) -> None:
    """Trains the algorithm ``config.algo`` on the environment ``config.env_id``, and exports the trained policy.

    `run` provides the run folder, the device and the ranks.
    """
    ranks = run.ranks
    num_envs = per_rank("num_envs", config.loop.num_envs, ranks.world_size)

    def report_failure(fault: EnvFailure) -> None:
        run.console.note(str(fault))
        assert env.failures is not None
        run.metrics.set_scalar("charts/env_failures", sum(env.failures.counts.values()))

    env = make_env(config, num_envs, config.num_workers, config.run.seed, ranks.rank, run.device, report_failure)
    try:
        settings, line = scaled_lr(getattr(config, config.algo), config.run.lr_scale, ranks.world_size)
        run.describe({"learning rates": line})
        learner = make_learner(replace(config, **{config.algo: settings}), env.spec, run.context)
        hooks = RunHooks(lambda: summary(play(config, learner, config.eval_episodes)), evaluator=EVALUATOR)
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
    file = run_dir / "config.json"
    config = from_json(with_algorithms(Config, ALGORITHMS), saved_text(file), str(file), OLD_NAMES)
    learner, _, _ = build_learner(config, RankContext.single())

    def evaluate_checkpoint(checkpoint: Path) -> dict[str, float]:
        restore_learner(checkpoint, learner)
        return summary(play(config, learner, config.eval_episodes))

    return evaluate_checkpoint


def play(config: Config, learner: Learner, episodes: int, seed: int = 10_000) -> dict:
    """Plays episodes without exploration, on seeds that training does not use.

    Args:
        config: Configuration of the run.
        learner: Learner that acts.
        episodes: Number of episodes; above 10, it is rounded up to a multiple of 10.
        seed: Seed of the environments.

    Returns:
        Name -> tensor (episodes,) with one value per episode: ``env`` (index of the environment), ``return`` (sum of
        the rewards), ``length`` (steps), and metrics that the environment reports.
    """
    env = make_env(config, min(episodes, 10), 0, seed)
    try:
        return evaluation.evaluate(
            env,
            lambda obs, carry: learner.act(obs, carry, explore=False)[::2],
            episodes,
            seed,
            learner.initial_carry(env.num_envs),
        )
    finally:
        env.close()


def summary(figures: dict) -> dict[str, float]:
    """Computes the mean return and the mean length of evaluated episodes.

    Args:
        figures: Tensors ``return`` and ``length`` (episodes,), as `play` returns them.

    Returns:
        ``return`` (the mean), ``return_low`` and ``return_high`` (its 95 % confidence interval), and ``length`` (mean
        number of steps).
    """
    mean, low, high = evaluation.mean_interval(figures["return"])
    return {"return": mean, "return_low": low, "return_high": high, "length": float(figures["length"].mean())}


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Evaluates the newest checkpoint of the run in `folder` without exploration.

    The result is printed and written to ``eval-episodes.json`` in `folder`.

    Args:
        config: Configuration of the run.
        folder: Run folder.
        options: Number of episodes, and seed.

    Returns:
        A list of one dict: ``env_id``, ``episodes``, ``return`` (the mean), ``return_low`` and ``return_high`` (its
        95 % confidence interval), and ``length`` (mean number of steps).
    """
    path, _ = resolve_resume(str(folder))
    learner, _, _ = build_learner(config, RankContext.single())
    restore_learner(path, learner)
    figures = play(config, learner, options.episodes, options.seed)
    result, episodes = summary(figures), len(figures["return"])
    interval = f"[{result['return_low']:,.1f}, {result['return_high']:,.1f}]"
    mean, length = f"{result['return']:,.1f}", f"{result['length']:,.0f}"
    print(f"{config.env_id}: return {mean} {interval} over {episodes} episodes of {length} steps")
    rows = [{"env_id": config.env_id, "episodes": episodes, **result}]
    (folder / "eval-episodes.json").write_text(json.dumps({"options": options.__dict__, "rows": rows}, indent=2))
    return rows
