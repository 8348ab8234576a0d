"""Evaluates policies on a Gymnasium environment: plays episodes, prints a table, and records a video."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from powerband.core.evaluation_context import evaluation_context
from powerband.core.noise import NoiseSource
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.core.run.state_registry import restore_learner
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.types import Learner, VecEnv
from powerband.loops import evaluate as evaluation
from powerband.loops.evaluate import Policy
from powerband.loops.off_policy import random_actions
from powerband.recipes.gym.config import Config, Evaluation
from powerband.recipes.gym.environments import make_env
from powerband.recipes.gym.film import CannotRender, record_episode
from powerband.recipes.gym.learners import build_learner
from powerband.report.evaluation_table import result_path, write_table

EVAL_ENVS = 10
"""Episodes that an evaluation plays at a time."""
EVAL_SEED = 10_000
"""Seed of the evaluations during training, which is none of the training. ``powerband eval`` uses another, because
these episodes have selected the best checkpoint."""


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
        ``return_high`` (its 95 % confidence interval, None for one episode), and ``length`` (mean number of steps).
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
        interval = f"[{result['return_low']:,.1f}, {result['return_high']:,.1f}] over {episodes} episodes"
        if episodes == 1:
            interval = "in 1 episode"
        mean, length = f"{result['return']:,.1f}", f"{result['length']:,.0f}"
        print(f"{config.env_id} {name}: return {mean} {interval} of {length} steps")
        rows.append({"env_id": config.env_id, "policy": name, "episodes": episodes, **result})
    if options.video:
        try:
            path = result_path(folder, "videos/episode")
            print(f"video: {record_episode(config, learner, policies['policy'], options.seed, path, context.device)}")
        except CannotRender as error:
            print(f"no video: {error}")
        except Exception as error:  # any environment may fail in its own way, and the table is complete
            print(f"no video: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return write_table(folder, "episodes", options, rows)
