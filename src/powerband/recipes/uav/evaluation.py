"""Evaluation of uav: flies complete missions with policies or planners, and computes means with 95 % intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerband.loops.evaluate import evaluate, mean_interval
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.planners import Planner
from powerband.recipes.uav.env.rules.map_metrics import EPISODE_METRICS
from powerband.recipes.uav.learner import TeamLearner
from powerband.recipes.uav.settings import World

Act = Callable[[UavEnv, Any], Tensor]
"""Policy: function from the missions and their observations to moves (N, A) of N missions with A UAVs."""


def planner_policy(planner: Planner) -> Act:
    """Returns a policy, a function from missions and observations to moves, that asks `planner` for the moves."""
    return lambda env, obs: planner.act(env)


def deterministic_policy(learner: TeamLearner) -> Act:
    """Returns the policy of a trained learner that always takes the most likely of the allowed moves."""
    return lambda env, obs: env.masked_sample(learner.probability(obs), None)[0]


def fly_missions(
    env: UavEnv, act: Act, seed: int, on_move: Callable[[UavEnv, dict[str, Tensor]], None] | None = None
) -> dict[str, Tensor]:
    """Flies all N missions of `env` once, from the start to the end.

    Args:
        env: Environment with N missions.
        act: Policy that chooses the moves.
        seed: Seed of the missions.
        on_move: Function that is called before each move with `env` and the result of ``env.score()``; None calls
            nothing.

    Returns:
        ``f1`` (N, moves + 1): F1 score of the region of interest, from the start to the end of each mission.
        ``roi_entropy`` (N, moves + 1): mean entropy over this region in bits. ``return`` (N,): sum of the rewards.
    """
    curves: dict[str, list[Tensor]] = {name: [] for name in EPISODE_METRICS}

    def policy(obs: Any, carry: Tensor | None) -> tuple[Tensor, None]:
        score = env.score()
        for name in EPISODE_METRICS:
            curves[name].append(score[name])
        if on_move is not None:
            on_move(env, score)
        return act(env, obs), None

    last = evaluate(env, policy, env.num_envs, seed)
    return {"return": last["return"]} | {
        name: torch.stack([*(part.cpu() for part in curves[name]), last[name]], 1) for name in EPISODE_METRICS
    }


def summary(metrics: dict[str, Tensor]) -> dict[str, Any]:
    """Computes means and 95 % intervals over missions.

    Args:
        metrics: Result of `fly_missions`.

    Returns:
        The number of ``missions``, the mean ``return``, and for each of the metrics f1 and roi_entropy two means over
        missions: ``f1_mean`` is the mean over the moves of a mission (the area under its curve), and ``f1_end`` the
        value at its end. Names that end in ``_95`` are the intervals, as [low, high].
    """
    row: dict[str, Any] = {"missions": len(metrics["return"])}
    columns = {f"{name}_mean": metrics[name].mean(1) for name in EPISODE_METRICS}
    columns |= {f"{name}_end": metrics[name][:, -1] for name in EPISODE_METRICS} | {"return": metrics["return"]}
    for name, values in columns.items():
        mean, low, high = mean_interval(values)
        row[name], row[f"{name}_95"] = round(mean, 4), [round(low, 4), round(high, 4)]
    return row


def training_evaluation(learner: TeamLearner, world: World, missions: int, device: torch.device) -> dict[str, float]:
    """Evaluates a learner during training, on missions that training does not use.

    Args:
        learner: The learner that is trained.
        world: Settings of the missions.
        missions: Number of missions.
        device: Device that simulates the missions.

    Returns:
        Means over the missions by name: ``f1_mean``, ``roi_entropy_mean``, ``f1_end``, ``roi_entropy_end`` and
        ``return``, which `summary` explains.
    """
    env = UavEnv(missions, world, device=device, seed=20_000)
    row = summary(fly_missions(env, deterministic_policy(learner), 20_000))
    return {name: row[name] for name in ("f1_mean", "roi_entropy_mean", "f1_end", "roi_entropy_end", "return")}
