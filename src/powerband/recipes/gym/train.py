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
from powerband.core.evaluation_context import evaluation_context
from powerband.core.noise import NoiseSource
from powerband.core.rank_context import RankContext
from powerband.core.recipe import load_object, with_algorithms
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.core.run.state_registry import restore_learner
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.types import EnvSpec, Learner, OnPolicyLearner, VecEnv
from powerband.envs.adapters.by_id import make_gym
from powerband.envs.adapters.goal_reward import EnvGoalReward
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.workers.supervision import EnvFailure, Supervision
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.loops import evaluate as evaluation
from powerband.loops.evaluate import Policy
from powerband.loops.off_policy import off_policy, random_actions
from powerband.loops.on_policy import on_policy
from powerband.nets.observations.encoders import ObsEncoder, needs_encoder
from powerband.recipes.gym.config import ALGORITHMS, OLD_NAMES, Config, Evaluation
from powerband.recipes.gym.film import record_episode

EVALUATOR = "powerband.recipes.gym.train:open_evaluator"
EVAL_ENVS = 10
"""Episodes that an evaluation plays at a time."""
EVAL_SEED = 10_000
"""Seed of the evaluations during training, which is none of the training."""


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
    file = run_dir / "config.json"
    config = from_json(with_algorithms(Config, ALGORITHMS), saved_text(file), str(file), OLD_NAMES)
    learner, _, _ = build_learner(config, RankContext.single())

    def evaluate_checkpoint(checkpoint: Path) -> dict[str, float]:
        restore_learner(checkpoint, learner)
        return summary(play(config, learner, config.eval_episodes))

    return evaluate_checkpoint


def play(config: Config, learner: Learner, episodes: int, device: torch.device | str = "cpu") -> dict:
    """Plays episodes without exploration, on seeds that training does not use.

    Args:
        config: Configuration of the run.
        learner: Learner that acts.
        episodes: Number of episodes; above 10, it is rounded up to a multiple of 10.
        device: Device of the learner.

    Returns:
        Name -> tensor (episodes,) with one value per episode: ``env`` (index of the environment), ``return`` (sum of
        the rewards), ``length`` (steps), and metrics that the environment reports.
    """
    return play_policy(config, learner, lambda env: greedy_policy(learner), episodes, EVAL_SEED, device=device)


def play_policy(
    config: Config,
    learner: Learner,
    make_policy: Callable[[VecEnv], Policy],
    episodes: int,
    seed: int,
    workers: int = 0,
    device: torch.device | str = "cpu",
    label: str = "",
) -> dict:
    """Plays episodes with any policy.

    Args:
        config: Configuration of the run.
        learner: Determines the initial recurrent state.
        make_policy: Function (environments) -> policy.
        episodes: As in `play`.
        seed: Seed of the environments.
        workers: Worker processes of the environments; -1 starts one per core.
        device: Device of the observations.
        label: Label of the progress bar; empty shows none.

    Returns:
        The result of `play`.
    """
    env = make_env(config, min(episodes, EVAL_ENVS), workers, seed, device=device)
    try:
        with count_progress_bar(label, episodes, "episodes") as on_progress:
            carry = learner.initial_carry(env.num_envs)
            return evaluation.evaluate(env, make_policy(env), episodes, seed, carry, on_progress)
    finally:
        env.close()


def greedy_policy(learner: Learner) -> Policy:
    """Returns the policy of a learner without exploration."""
    return lambda obs, carry: learner.act(obs, carry, explore=False)[::2]


def random_policy(env: VecEnv, seed: int) -> Policy:
    """Returns a policy whose actions are drawn uniformly among those that the environment allows."""
    noise = NoiseSource(seed, env.device)("random policy", env.num_envs)
    return lambda obs, carry: (random_actions(noise, env, obs), carry)


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

    The result is printed and written to ``eval-episodes.json`` in `folder`, a video to ``videos``.

    Args:
        config: Configuration of the run.
        folder: Run folder.
        options: Options of ``powerband eval``.

    Returns:
        One dict per policy: ``env_id``, ``policy``, ``episodes``, ``return`` (the mean), ``return_low`` and
        ``return_high`` (its 95 % confidence interval), and ``length`` (mean number of steps).
    """
    path, _ = resolve_resume(str(folder))
    context = evaluation_context(options.gpus, options.precision)
    learner, _, _ = build_learner(config, context)
    restore_learner(path, learner)
    policies: dict[str, Callable[[VecEnv], Policy]] = {
        "policy": lambda env: greedy_policy(learner),
        "random": lambda env: random_policy(env, options.seed),
    }
    rows = []
    for name in dict.fromkeys(options.policies):
        figures = play_policy(
            config, learner, policies[name], options.episodes, options.seed, options.workers, context.device, name
        )
        result, episodes = summary(figures), len(figures["return"])
        interval = f"[{result['return_low']:,.1f}, {result['return_high']:,.1f}]"
        mean, length = f"{result['return']:,.1f}", f"{result['length']:,.0f}"
        print(f"{config.env_id} {name}: return {mean} {interval} over {episodes} episodes of {length} steps")
        rows.append({"env_id": config.env_id, "policy": name, "episodes": episodes, **result})
    if options.video:
        try:
            path = folder / "videos" / "episode"
            print(f"video: {record_episode(config, learner, policies['policy'], options.seed, path, context.device)}")
        except Exception as error:  # any environment may fail in its own way, and the table is complete
            print(f"no video: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    (folder / "eval-episodes.json").write_text(json.dumps({"options": options.__dict__, "rows": rows}, indent=2))
    return rows
