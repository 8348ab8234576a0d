"""metaworld: the recipe that trains SAC experts on Meta-World, distils them into one network, and trains students."""

from powerband.core.recipe import Recipe
from powerband.recipes.metaworld.config import Config, Evaluation, check, finalize, notices
from powerband.recipes.metaworld.old_names import OLD_ARGUMENTS, OLD_NAMES
from powerband.recipes.metaworld.variants import VARIANTS

RECIPE = Recipe(
    name="metaworld",
    summary="Meta-World: SAC experts, one collective policy distilled from all of them, and a student that it helps",
    Config=Config,
    stages={
        "expert": "powerband.recipes.metaworld.stages.expert:expert",
        "online_distill": "powerband.recipes.metaworld.stages.online_distill:online_distill",
        "represent": "powerband.recipes.metaworld.stages.offline:represent",
        "distill": "powerband.recipes.metaworld.stages.offline:distill",
        "evaluate": "powerband.recipes.metaworld.stages.evaluate:evaluate",
        "student": "powerband.recipes.metaworld.stages.student:student",
        "student_finetune": "powerband.recipes.metaworld.stages.student:student_finetune",
        "pipeline": "powerband.recipes.metaworld.stages.pipeline:pipeline",
    },
    variants=VARIANTS,
    old_names=OLD_NAMES,
    old_arguments=OLD_ARGUMENTS,
    finalize=finalize,
    notices=notices,
    check=check,
    task="task",
    score="success",
    Evaluation=Evaluation,
    evaluate="powerband.recipes.metaworld.evaluation:evaluate_run",
    build_learner="powerband.recipes.metaworld.algos.expert:build_learner",
)
