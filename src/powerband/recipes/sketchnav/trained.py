"""Trained policies of sketchnav, by the run that has trained them."""

from __future__ import annotations

from pathlib import Path

from powerband.core.config import RunConfig, stored_config
from powerband.core.config.saved import named_run, recipe_of
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.evaluation_context import evaluation_context
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import checkpoint_of, resolve_resume
from powerband.core.run.state_registry import restore_learner
from powerband.core.run_folder import refuse_links
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.learners import build_learner
from powerband.recipes.sketchnav.old_names import OLD_NAMES
from powerband.recipes.sketchnav.policies import NavigationLearner


def trained_run(name: str, option: str, here: RunConfig) -> tuple[Config, Path, RankContext]:
    """Finds a run of sketchnav by its name.

    Args:
        name: Run or checkpoint, or last for the newest run.
        option: Option that has this value, for messages.
        here: Device, precision and threads of the policy.

    Returns:
        The configuration of the run, its folder or that of the checkpoint, and the context of its policy.

    Raises:
        ConfigError: The run does not exist, or belongs to another recipe.
    """
    run = named_run(name, option)
    refuse_links(run)
    if (recipe := recipe_of(run)) != "sketchnav":
        raise ConfigError(f"{option}={shortened(name)} is a run of {recipe}. Name a run of sketchnav.")
    precision = "fp32" if here.precision == "auto" else here.precision
    context = evaluation_context(here.gpus, precision, here.threads)
    return stored_config(run, Config, OLD_NAMES), checkpoint_of(name) or run, context


def trained_learner(config: Config, folder: Path, context: RankContext) -> NavigationLearner:
    """Builds the learner of a run, and loads its weights.

    Args:
        config: Configuration of the run.
        folder: Run folder, whose newest checkpoint is loaded, or a checkpoint in it.
        context: Device, precision and random streams.

    Raises:
        CheckpointError: There is no checkpoint that fits.
    """
    learner = build_learner(config, context)[0]
    restore_learner(resolve_resume(str(folder))[0], learner)
    return learner
