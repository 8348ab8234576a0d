"""Recipe libero: trains RDT, a diffusion transformer that observes instructions and cameras, on LIBERO demonstrations.

LIBERO is a benchmark suite of manipulation tasks.
"""

from powerband.core.recipe import Recipe
from powerband.recipes.libero.config import OLD_NAMES, VARIANTS, Config, check, finalize, notices
from powerband.recipes.libero.settings import OLD_EVALUATION_NAMES, Evaluation

RECIPE = Recipe(
    name="libero",
    summary="LIBERO: a diffusion transformer (RDT) with language and cameras, from demonstrations, through Accelerate",
    Config=Config,
    stages={
        "train": "powerband.recipes.libero.train:train",
        "demos": "powerband.recipes.libero.demos:demos",
        "export": "powerband.recipes.libero.dataset:export",
        "pipeline": "powerband.recipes.libero.pipeline:pipeline",
    },
    variants=VARIANTS,
    old_names=OLD_NAMES,
    finalize=finalize,
    notices=notices,
    check=check,
    task="benchmark",
    score="success",
    held_out_seeds=(1_000, 2_000),
    Evaluation=Evaluation,
    old_evaluation_names=OLD_EVALUATION_NAMES,
    finalize_evaluation="powerband.recipes.libero.evaluation_options:finalize_evaluation",
    evaluate="powerband.recipes.libero.evaluation:evaluate_run",
    build_learner="powerband.recipes.libero.learners:build_learner",
)
