"""Stage train of sketchnav: trains PPO in the environment, or imitates recorded demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from powerband.core.config import stored_config
from powerband.core.config.sizes import scaled_lr
from powerband.core.rank_context import RankContext
from powerband.core.recipe import with_algorithms
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.core.run.state_registry import restore_learner
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.loops.offline import offline
from powerband.loops.on_policy import on_policy
from powerband.recipes.sketchnav.config import ALGORITHMS, Config
from powerband.recipes.sketchnav.environments import make_training_env
from powerband.recipes.sketchnav.evaluation.evaluate import HeldOutEvaluation
from powerband.recipes.sketchnav.imitation.dataset import DemonstrationSequences, load_demonstrations
from powerband.recipes.sketchnav.learners import build_chunk_learner, build_learner, build_ppo
from powerband.recipes.sketchnav.old_names import OLD_NAMES
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes


def train(config: Config, run: Run) -> None:
    """Trains on the episodes of the split train: PPO in the environment, other algorithms on demonstrations."""
    if config.algo == "ppo":
        train_ppo(config, run)
    else:
        train_on_demonstrations(config, run)


def train_ppo(config: Config, run: Run) -> None:
    """Trains PPO in the environment and exports the trained policy."""
    episodes = load_episodes(config, "train", run.console)
    env = make_training_env(config, run, episodes)
    settings, line = scaled_lr(config.ppo, config.run.lr_scale, run.ranks.world_size)
    run.describe({"learning rates": line})
    sketches = episodes.sketch.to(run.device)
    learner = build_ppo(replace(config, ppo=settings), env.spec, sketches, run.context)
    run.describe(
        {
            "episodes": f"{len(episodes):,} in {len(episodes.size):,} plans, {config.scenes.sketch} sketches of "
            f"{sketches.shape[-1]} pixels, mean path length {float(episodes.length.mean()):.1f} m"
        }
    )
    hooks = RunHooks(HeldOutEvaluation(config, learner, run.device), evaluator_for(run))
    try:
        on_policy(run, env, learner, config.on_policy, hooks=hooks)
    finally:
        env.close()
    run.export_policy(learner.policy_state())


def evaluator_for(run: Run) -> str:
    """Returns the evaluator for a run on the CPU, as ``module:function``; empty for a run on a GPU.

    On a GPU, evaluation takes place in the training process, because image networks are too slow on the CPU.
    """
    return "powerband.recipes.sketchnav.train:open_evaluator" if run.device.type == "cpu" else ""


def open_evaluator(run_dir: Path) -> Callable[[Path], dict[str, float]]:
    """Returns the evaluation of the run in `run_dir` for a process of its own: (checkpoint) -> results."""
    config = stored_config(run_dir, with_algorithms(Config, ALGORITHMS), OLD_NAMES)
    learner, _, _ = build_learner(config, RankContext.single())
    play = HeldOutEvaluation(config, learner, torch.device("cpu"))

    def evaluate_checkpoint(checkpoint: Path) -> dict[str, float]:
        restore_learner(checkpoint, learner)
        return play()

    return evaluate_checkpoint


def train_on_demonstrations(config: Config, run: Run) -> None:
    """Trains a diffusion policy or a behaviour clone on the demonstrations in the folder ``config.demos_dir``."""
    demonstrations, episodes = load_demonstrations(config, run.console)
    ranks, sketches = run.ranks, episodes.sketch.to(run.device)
    settings, line = scaled_lr(config.chunks, config.run.lr_scale, ranks.world_size)
    run.describe({"learning rates": line})
    config = replace(config, chunks=settings)
    learner = build_chunk_learner(config, sketches, run.context)
    run.describe(
        {
            "demonstrations": f"{demonstrations.rows:,} steps of {demonstrations.num_episodes:,} episodes, "
            f"{config.scenes.sketch} sketches of {sketches.shape[-1]} pixels"
        }
    )
    steps = config.chunks.sequence if config.chunks.gru else 1
    rows = DemonstrationSequences(demonstrations, steps, config.chunks.gru) if config.chunks.gru else demonstrations
    loader = BatchLoader(
        rows.rows,
        config.offline.batch(ranks.world_size) // steps,
        rows,
        run.device,
        config.run.seed,
        ranks.rank,
        ranks.world_size,
        config.offline.loader_threads,
        steps,
    )
    hooks = RunHooks(HeldOutEvaluation(config, learner, run.device), evaluator_for(run))
    offline(run, learner, loader, config.offline, hooks=hooks)
    run.export_policy(learner.policy_state())
