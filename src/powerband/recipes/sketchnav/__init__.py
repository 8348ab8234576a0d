"""sketchnav: the recipe that trains agents to navigate indoors to the goal on a hand-drawn sketch map."""

from powerband.core.recipe import Recipe
from powerband.recipes.sketchnav.config import (
    ALGORITHMS,
    VARIANTS,
    Config,
    check,
    finalize,
    notices,
)
from powerband.recipes.sketchnav.evaluation.options import OLD_EVALUATION_NAMES, Evaluation
from powerband.recipes.sketchnav.old_names import OLD_ARGUMENTS, OLD_NAMES

RECIPE = Recipe(
    name="sketchnav",
    summary="find a goal in a building by a hand-drawn sketch: recurrent PPO, a diffusion policy, cloning",
    Config=Config,
    stages={
        "train": "powerband.recipes.sketchnav.train:train",
        "episodes": "powerband.recipes.sketchnav.plans.episodes.sets:write_episode_sets",
        "demos": "powerband.recipes.sketchnav.imitation.recorder:record_demonstrations",
        "draw": "powerband.recipes.sketchnav.drawing.session:draw",
    },
    interactive=("draw",),
    algorithms=ALGORITHMS,
    default_stage="train",
    variants=VARIANTS,
    old_names=OLD_NAMES,
    old_arguments=OLD_ARGUMENTS,
    implied_algo={"RL.DIFFUSION.lr": "diffusion"},
    finalize=finalize,
    notices=notices,
    check=check,
    score="success",
    Evaluation=Evaluation,
    old_evaluation_names=OLD_EVALUATION_NAMES,
    evaluate="powerband.recipes.sketchnav.evaluation.evaluate:evaluate_checkpoint",
    build_learner="powerband.recipes.sketchnav.learners:build_learner",
)
