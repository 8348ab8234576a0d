"""Comparison: evaluates the policy of a run and the planners on the same missions, and writes tables and images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.evaluation_context import evaluation_context
from powerband.core.telemetry.console import count_progress_bar
from powerband.loops.evaluate import mean_interval
from powerband.recipes.uav.config import Config
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.planners import GreedyPlanner, LawnmowerPlanner, RandomPlanner
from powerband.recipes.uav.evaluation import Act, deterministic_policy, fly_missions, planner_policy, summary
from powerband.recipes.uav.evaluation_options import Evaluation
from powerband.recipes.uav.images import draw_curves, film_mission
from powerband.recipes.uav.learner import load_learner, load_other_run
from powerband.recipes.uav.settings import World
from powerband.report.evaluation_table import result_path, write_table
from powerband.report.media_files import save_image, write_video


def compared_policies(names: tuple[str, ...], world: World) -> dict[str, tuple[Act, World]]:
    """Creates the policies with which a run is compared: planners that do not learn, or policies of other runs.

    Args:
        names: Names of planners (random, lawnmower, greedy) and folders of other runs; the name none is skipped.
        world: Settings of the missions.

    Returns:
        Each policy by its name in the printed table, and the settings of its missions: `world` with the observations
        of the policy. lawnmower has one policy per altitude of `world`. The name of another run is its folder as in
        `names`, because the last part of a path can be the same for two runs.

    Raises:
        ConfigError: A name is neither a planner nor an existing folder, or the run in the folder has other altitudes.
    """
    policies: dict[str, tuple[Act, World]] = {}
    for name in names:
        if name == "none":
            continue
        elif name == "random":
            policies[name] = planner_policy(RandomPlanner()), world
        elif name == "greedy":
            policies[name] = planner_policy(GreedyPlanner()), world
        elif name == "lawnmower":
            for index, height in enumerate(world.altitudes_m):
                policies[f"lawnmower {height:g} m"] = planner_policy(LawnmowerPlanner(index)), world
        elif Path(name).exists():
            learner, observed = load_other_run(Path(name), world)
            policies[name] = deterministic_policy(learner), observed
        else:
            raise ConfigError(
                f"policies={name}: {name!r} is neither a planner nor a folder. Write random, lawnmower, greedy, none, "
                f"or the folder of another run."
            )
    return policies


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Flies the same missions with the newest checkpoint of a run and with each planner, and prints a table.

    Writes ``eval-missions.json``, then curves, an image and a video to the run folder `folder`. These show the first
    combination of team size and communication range.

    Returns:
        One dict per combination of policy, team size and communication range, with the keys ``policy``, ``n_agents``
        and ``comm_range_m``, which is "random" if each mission draws its range, and "inf" without a limit. It also
        contains the entries of `evaluation.summary`. ``this_run_ahead_f1`` is the ``f1_mean`` of this run minus that of
        the policy, as [mean, low, high] with a 95 % interval. The intervals of a single mission are None.
    """
    context = evaluation_context(options.gpus, options.precision, options.workers or config.run.threads)
    learner, world = load_learner(folder, config, context), config.world
    rows: list[dict] = []
    curves: dict[str, dict[str, Tensor]] = {}
    teams = [replace(world, n_agents=agents) for agents in options.n_agents or (world.n_agents,)]
    settings = [setting for team in teams for setting in _ranges(team, options.comm_range_m)]
    for setting in settings:
        env = UavEnv(options.episodes, setting, seed=options.seed)
        own = env
        if context.device.type != "cpu":
            own = UavEnv(options.episodes, setting, device=context.device, seed=options.seed)
        others = compared_policies(options.policies, setting)
        policies = {"this run": (deterministic_policy(learner), setting), **others}
        metrics = {}
        with count_progress_bar("missions", options.episodes * len(policies), "missions") as show_progress:
            for number, (name, (act, observed)) in enumerate(policies.items(), start=1):
                missions = own if name == "this run" else env
                if observed != setting:  # the same missions, with other observations
                    missions = UavEnv(options.episodes, observed, seed=options.seed)
                metrics[name] = fly_missions(missions, act, options.seed)
                show_progress(options.episodes * number)
        for name, values in metrics.items():
            comm_range = "random" if setting.random_comm_range else setting.comm_range_m
            row = {"policy": name, "n_agents": setting.n_agents, "comm_range_m": comm_range, **summary(values)}
            difference = mean_interval((metrics["this run"]["f1"] - values["f1"]).mean(1))
            row["this_run_ahead_f1"] = [round(value, 4) for value in difference]
            rows.append(row)
            print(_line(row), flush=True)
        curves = curves or metrics
    rows = write_table(folder, "missions", options, rows)
    save_image(result_path(folder, "eval-curves.png"), draw_curves(curves, _title(settings[0])))
    if options.video:
        frames = film_mission(learner, settings[0], options.seed, context.device)
        write_video(frames, result_path(folder, "videos/mission.mp4"), fps=2)
        save_image(result_path(folder, "mission.png"), frames[-1])
    return rows


def _ranges(world: World, comm_ranges_m: tuple[float, ...]) -> list[World]:
    """Returns `world` with each of the communication ranges, or unchanged if there are none."""
    return [replace(world, comm_range_m=each, random_comm_range=False) for each in comm_ranges_m] or [world]


def _title(world: World) -> str:
    """Returns team size, communication range and the share of lost messages of `world`, as a title of curves."""
    comm_range = "random" if world.random_comm_range else f"{world.comm_range_m:g} m"
    lost = f", {world.failure_rate:.0%} of the messages lost" if world.failure_rate else ""
    return f"{world.n_agents} UAVs, communication range {comm_range}{lost}"


def _line(row: dict[str, Any]) -> str:
    def cell(name: str) -> str:
        low, high = row[f"{name}_95"]
        return f"{row[name]:.3f} [{low:.3f}, {high:.3f}]"

    comm_range = row["comm_range_m"]
    shown = f"{comm_range:>6}" if comm_range == "random" else f"{comm_range:>5g} m"
    return (
        f"{row['policy']:<16} {row['n_agents']} UAVs {shown}   F1 {cell('f1_mean')}, at the end "
        f"{row['f1_end']:.3f}   ROI entropy {cell('roi_entropy_mean')}, at the end {row['roi_entropy_end']:.3f}"
    )
