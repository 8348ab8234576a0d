"""Recipe snakes: trains a team of three snakes against three others, with DDPG, BiCNet, or PPO with self-play."""

from powerband.core.recipe import Recipe
from powerband.recipes.snakes.config import (
    ALGORITHMS,
    IMPLIED_ALGO,
    OLD_NAMES,
    VARIANTS,
    Config,
    check,
    finalize,
    notices,
)
from powerband.recipes.snakes.evaluation_options import OLD_EVALUATION_NAMES, Evaluation

RECIPE = Recipe(
    name="snakes",
    summary="3v3 snakes on one device, thousands of boards at a time: ddpg, bicnet, ppo with self-play",
    Config=Config,
    stages={"train": "powerband.recipes.snakes.train:train"},
    algorithms=ALGORITHMS,
    variants=VARIANTS,
    old_names=OLD_NAMES,
    combined_options="powerband.recipes.snakes.load_model:resumed_run",
    implied_algo=IMPLIED_ALGO,
    finalize=finalize,
    notices=notices,
    check=check,
    score="win_greedy",
    held_out_seeds=(10_000, 20_000),
    Evaluation=Evaluation,
    old_evaluation_names=OLD_EVALUATION_NAMES,
    evaluate="powerband.recipes.snakes.train:evaluate",
    build_learner="powerband.recipes.snakes.learners:build_learner",
)
