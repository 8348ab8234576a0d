"""Recipe uav: a team of UAVs learns where to measure next, to map a hidden region within a budget of moves."""

from powerband.core.recipe import Recipe
from powerband.recipes.uav.config import (
    ALGORITHMS,
    OLD_NAMES,
    VARIANTS,
    Config,
    check,
    finalize,
    notices,
)
from powerband.recipes.uav.evaluation_options import OLD_EVALUATION_NAMES, Evaluation

RECIPE = Recipe(
    name="uav",
    summary="a team of UAVs maps a hidden region, thousands of missions at a time on one device: coma, iac, mappo",
    Config=Config,
    stages={"train": "powerband.recipes.uav.train:train"},
    algorithms=ALGORITHMS,
    variants=VARIANTS,
    old_names=OLD_NAMES,
    config_variable="CONFIG_FILE_PATH",
    finalize=finalize,
    notices=notices,
    check=check,
    score="f1_end",
    held_out_seeds=(10_000, 20_000, 30_000),
    Evaluation=Evaluation,
    old_evaluation_names=OLD_EVALUATION_NAMES,
    evaluate="powerband.recipes.uav.comparison:evaluate",
    build_learner="powerband.recipes.uav.learner:build_learner",
)
