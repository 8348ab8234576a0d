"""Starts the drawing page for a run: ``powerband eval RUN draw=true``."""

from __future__ import annotations

from pathlib import Path

from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.drawing.server import DrawingServer
from powerband.recipes.sketchnav.drawing.walker import Walker
from powerband.recipes.sketchnav.plans.generation import generate_numbered_plan
from powerband.recipes.sketchnav.plans.imported.plan_files import read_plans
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.policies import NavigationLearner

MAX_PLANS = 20
"""Plans that the page offers."""


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
    with DrawingServer(Walker(config, learner, plans), port) as server:
        print(f"Open {server.url} in a browser on this machine. Ctrl-C ends.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("The page is closed.", flush=True)
