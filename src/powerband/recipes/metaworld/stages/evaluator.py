"""Evaluator of the stages expert and student: evaluates their checkpoints in a process of its own during training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from powerband.core.config import stored_config
from powerband.core.regular_files import read_object
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.gymnasium_env import VALIDATION_GOAL_SEED
from powerband.recipes.metaworld.evaluation import GoalEvaluator
from powerband.recipes.metaworld.old_names import OLD_NAMES
from powerband.recipes.metaworld.policies import greedy_policy, load_run_policy


def open_evaluator(run_dir: Path) -> Callable[[Path], dict[str, float]]:
    """Returns the evaluation of an expert or a student for a process of its own: (checkpoint) -> results."""
    config = stored_config(run_dir, Config, OLD_NAMES)
    stage = read_object(run_dir / "run.json").get("stage", "")
    evaluator = GoalEvaluator(config, goal_seed=VALIDATION_GOAL_SEED)

    def evaluate_checkpoint(checkpoint: Path) -> dict[str, float]:
        sac = load_run_policy(config, checkpoint, run_dir, stage)
        return evaluator.figures(greedy_policy(sac), config.eval_episodes)

    return evaluate_checkpoint
