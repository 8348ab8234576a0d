"""Missions of uav flown for a score: policies and planners on the same held-out missions, with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.algos.coma import COMA
from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.flags import at_least
from powerband.envs.uav.env import UavEnv
from powerband.envs.uav.planners import GreedyPlanner, Lawnmower, RandomPlanner
from powerband.envs.uav.world import World
from powerband.loops.evaluate import evaluate, mean_interval
from powerband.report.film import save_picture, write_video

Act = Callable[[UavEnv, Any], Tensor]
"""(missions, observations) -> moves (N, A)."""
FIGURES = ("f1", "roi_entropy")


@dataclass(frozen=True)
class Evaluation:
    """What `powerband eval` can be told about a run of uav."""

    missions: int = 100
    """Missions of each policy and planner; the same ones for all."""
    planners: tuple[str, ...] = ("random", "lawnmower", "greedy")
    """random, lawnmower (at every altitude), greedy, the folder of another run; or none."""
    n_agents: tuple[int, ...] = ()
    """Sizes of the team; none is that of the run."""
    comm_range_m: tuple[float, ...] = ()
    """Ranges of communication in metres; none is that of the run."""
    seed: int = 10_000
    """Seed of the missions; training uses others."""
    video: bool = True
    """Draw the first mission of the run's policy, as a picture and a film."""
    threads: int = 0
    """CPU threads; 0 is as torch decides."""

    def __post_init__(self) -> None:
        at_least(self, missions=1, n_agents=1, comm_range_m=0, threads=0)


def planned(planner: Any) -> Act:
    """A planner as a policy."""
    return lambda env, obs: planner.act(env)


def likeliest(learner: COMA) -> Act:
    """A learner as a policy that does not explore."""
    return lambda env, obs: env.masked_sample(learner.probability(obs), None)[0]


def planners(names: tuple[str, ...], world: World) -> dict[str, Act]:
    """Planners by the names of a table.

    Raises:
        ValueError: An unknown name.
    """
    found: dict[str, Act] = {}
    for name in names:
        if name == "none":
            continue
        elif name == "random":
            found[name] = planned(RandomPlanner())
        elif name == "greedy":
            found[name] = planned(GreedyPlanner())
        elif name == "lawnmower":
            for index, height in enumerate(world.altitudes_m):
                found[f"lawnmower {height:g} m"] = planned(Lawnmower(index))
        elif Path(name).exists():
            found[Path(name).name] = likeliest(load(Path(name), world))
        else:
            raise ValueError(f"planners={name} is neither random, lawnmower, greedy nor the folder of a run.")
    return found


def load(folder: Path, world: World) -> COMA:
    """The learner of another run, for missions in `world`."""
    from powerband.core.config import from_json
    from powerband.core.precision import Precision
    from powerband.recipes import uav

    path, _ = resolve_resume(str(folder))
    run_dir = path.parent.parent
    config = from_json(uav.Config, (run_dir / "config.json").read_text(), str(run_dir / "config.json"))
    learner = uav.networks(replace(config, world=world), "cpu", Precision("fp32", "cpu"))[0]
    learner.load_state_dict(load_checkpoint(path, "shared")[0]["learner"])
    return learner


def fly(env: UavEnv, act: Act, seed: int, watch: Callable[[UavEnv, dict], None] | None = None) -> dict[str, Tensor]:
    """One mission in every row.

    Args:
        env: Missions.
        act: Chooses moves.
        seed: Of the missions.
        watch: Called before each move with the missions and their scores.

    Returns:
        f1, roi_entropy (N, moves + 1) from the start to the end; return (N,).
    """
    curves: dict[str, list[Tensor]] = {name: [] for name in FIGURES}

    def policy(obs: Any, carry: None) -> tuple[Tensor, None]:
        score = env.score()
        for name in FIGURES:
            curves[name].append(score[name])
        if watch is not None:
            watch(env, score)
        return act(env, obs), None

    last = evaluate(env, policy, env.num_envs, seed)
    return {"return": last["return"]} | {
        name: torch.stack([*(part.cpu() for part in curves[name]), last[name]], 1) for name in FIGURES
    }


def summary(flown: dict[str, Tensor]) -> dict[str, Any]:
    """Means with 95 % intervals over missions: of the whole mission (area under the curve over moves), of its end."""
    row: dict[str, Any] = {"missions": len(flown["return"])}
    columns = {f"{name}_mean": flown[name].mean(1) for name in FIGURES}
    columns |= {f"{name}_end": flown[name][:, -1] for name in FIGURES} | {"return": flown["return"]}
    for name, values in columns.items():
        mean, low, high = mean_interval(values)
        row[name], row[f"{name}_95"] = round(mean, 4), [round(low, 4), round(high, 4)]
    return row


def quick_figures(learner: COMA, world: World, missions: int, device: Any) -> dict[str, float]:
    """The figures of an evaluation during training."""
    flown = fly(UavEnv(missions, world, device=device, seed=20_000), likeliest(learner), 20_000)
    row = summary(flown)
    return {name: row[name] for name in ("f1_mean", "roi_entropy_mean", "f1_end", "roi_entropy_end", "return")}


def evaluate_run(folder: Path, world: World, learner: COMA, options: Evaluation) -> list[dict]:
    """Flies, prints the table, and writes ``eval-missions.json``, curves, a picture and a film into the run folder."""
    if options.threads:
        torch.set_num_threads(options.threads)
    path, _ = resolve_resume(str(folder))
    learner.load_state_dict(load_checkpoint(path, "shared")[0]["learner"])
    rows, curves = [], {}
    for agents in options.n_agents or (world.n_agents,):
        for reach in options.comm_range_m or (world.comm_range_m,):
            setting = replace(world, n_agents=agents, comm_range_m=reach, random_comm_range=False)
            env = UavEnv(options.missions, setting, seed=options.seed)
            flown = {
                name: fly(env, act, options.seed)
                for name, act in {"this run": likeliest(learner), **planners(options.planners, setting)}.items()
            }
            for name, figures in flown.items():
                row = {"policy": name, "n_agents": agents, "comm_range_m": reach, **summary(figures)}
                ahead = mean_interval((flown["this run"]["f1"] - figures["f1"]).mean(1))
                row["this_run_ahead_f1"] = [round(value, 4) for value in ahead]
                rows.append(row)
                print(_line(row), flush=True)
            curves = curves or flown
    from powerband.recipes.uav_pictures import draw_curves, film

    save_picture(folder / "eval-curves.png", draw_curves(curves))
    if options.video:
        frames = film(learner, world, options.seed)
        write_video(frames, folder / "videos" / "mission.mp4", fps=2)
        save_picture(folder / "mission.png", frames[-1])
    (folder / "eval-missions.json").write_text(json.dumps({"options": options.__dict__, "rows": rows}, indent=2))
    return rows


def _line(row: dict[str, Any]) -> str:
    def cell(name: str) -> str:
        low, high = row[f"{name}_95"]
        return f"{row[name]:.3f} [{low:.3f}, {high:.3f}]"

    return (
        f"{row['policy']:<16} {row['n_agents']} UAVs {row['comm_range_m']:>5g} m   F1 {cell('f1_mean')}, at the end "
        f"{row['f1_end']:.3f}   ROI entropy {cell('roi_entropy_mean')}, at the end {row['roi_entropy_end']:.3f}"
    )
