"""gym: the recipe that trains SAC, TD3, FastTD3, DQN or PPO on any Gymnasium environment, including your own."""

from powerband.core.recipe import Recipe
from powerband.recipes.gym.config import (
    ALGORITHMS,
    OLD_NAMES,
    VARIANTS,
    Config,
    Evaluation,
    check,
    imports,
    notices,
    task_settings,
)

RECIPE = Recipe(
    name="gym",
    summary="any Gymnasium environment id, including your own: sac, td3, fast_td3, dqn, ppo",
    Config=Config,
    stages={"train": "powerband.recipes.gym.train:train"},
    algorithms=ALGORITHMS,
    variants=VARIANTS,
    old_names=OLD_NAMES,
    task_settings=task_settings,
    notices=notices,
    imports=imports,
    check=check,
    task="env_id",
    score="return",
    held_out_seeds=(10_000, 20_000),
    Evaluation=Evaluation,
    evaluate="powerband.recipes.gym.evaluation:evaluate",
    build_learner="powerband.recipes.gym.learners:build_learner",
)
