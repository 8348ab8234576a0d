"""point-mass: a point moves in the plane to a goal. An example of a recipe in its own package."""

from powerband.core.recipe import Recipe
from powerband_point_mass.config import ALGORITHMS, Config, Evaluation, check

RECIPE = Recipe(
    name="point-mass",
    summary="a point mass that moves to a goal: ppo, sac",
    Config=Config,
    stages={"train": "powerband_point_mass.train:train"},
    algorithms=ALGORITHMS,
    variants={"smoke": {"run.env_steps": 2_000, "on_policy.num_envs": 8, "on_policy.num_steps": 25}},
    check=check,
    Evaluation=Evaluation,
    evaluate="powerband_point_mass.train:evaluate",
    build_learner="powerband_point_mass.train:build_learner",
)
