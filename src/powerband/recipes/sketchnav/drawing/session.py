"""Starts the drawing page for a trained policy: ``powerband train sketchnav draw policy=RUN``.

``powerband eval RUN draw=true`` opens the same page.
"""

from __future__ import annotations

from pathlib import Path

from powerband.core.rank_context import RankContext
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.drawing.server import drawing_routes
from powerband.recipes.sketchnav.drawing.walker import Walker
from powerband.recipes.sketchnav.plans.episodes.generation import generate_numbered_plan
from powerband.recipes.sketchnav.plans.imported.plan_files import read_plans
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.policies import NavigationLearner
from powerband.recipes.sketchnav.trained import trained_learner, trained_run
from powerband.report.local_page import LocalPage

MAX_PLANS = 20
"""Plans that the page offers."""


def draw(config: Config) -> None:
    """Stage draw: opens the page for the policy of the run or checkpoint ``config.policy``.

    Plans, device, precision, threads and port are those of `config`; everything else is as in the run.

    Raises:
        ConfigError: ``config.policy`` is no run of sketchnav, a plan is not valid, or the port is in use.
    """
    trained, folder, context = trained_run(config.policy, "policy", config.run)
    open_page(trained, folder, context, config.plans_dir, config.metres_per_pixel, config.port)


def open_page(
    config: Config, folder: Path, context: RankContext, plans_dir: str, metres_per_pixel: float, port: int
) -> None:
    """Serves the page for a trained policy until the user presses Ctrl-C.

    Args:
        config: Configuration of the run.
        folder: Run folder, whose newest checkpoint acts, or a checkpoint in it.
        context: Device and precision of the policy.
        plans_dir: Folder of the user's plans; empty uses those of the run.
        metres_per_pixel: Scale of the plans in `plans_dir`.
        port: Port; 0 takes a free one.

    Raises:
        ConfigError: The run has no checkpoint, a plan is not valid, or the port is in use.
    """
    learner = trained_learner(config, folder, context)
    serve(config, learner, page_plans(config, plans_dir, metres_per_pixel), port)


def page_plans(config: Config, plans_dir: str, metres_per_pixel: float) -> dict[str, Plan]:
    """Returns the plans that the page offers, name -> plan: the user's, or the first ones of val_unseen.

    Args:
        config: Configuration of the run.
        plans_dir: Folder of the user's plans; empty uses those of the run.
        metres_per_pixel: Scale of the plans in `plans_dir`.

    Raises:
        ConfigError: A plan is not valid.
    """
    if not plans_dir and config.plans_dir:
        plans_dir, metres_per_pixel = config.plans_dir, config.metres_per_pixel
    if plans_dir:
        imported = read_plans(Path(plans_dir), metres_per_pixel)
        return {each.name: each.plan for each in imported[:MAX_PLANS]}
    numbers = range(min(config.eval_plans, MAX_PLANS))
    return {
        f"plan {number}": generate_numbered_plan(config.scenes, "val_unseen", config.episode_seed, number)
        for number in numbers
    }


def serve(config: Config, learner: NavigationLearner, plans: dict[str, Plan], port: int) -> None:
    """Serves the page until the user presses Ctrl-C. It prints the address, which has the token.

    Args:
        config: Configuration of the run.
        learner: Learner with its trained weights.
        plans: Plans that the page offers, name -> plan.
        port: Port; 0 takes a free one.

    Raises:
        ConfigError: The port is in use.
    """
    LocalPage(drawing_routes(Walker(config, learner, plans)), port).serve()
