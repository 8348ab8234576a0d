"""Planners: masks, greedy moves against brute force, and the coverage of a lawnmower."""

from __future__ import annotations

import numpy as np
import torch

from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.planners import GreedyPlanner, LawnmowerPlanner, Planner, RandomPlanner
from powerband.recipes.uav.env.world import LOG_ODDS_UNITS
from powerband.recipes.uav.settings import World
from recipes.uav.env.reference import MOVES, ReferenceMission, entropy, weight
from recipes.uav.env.test_mission import heard, noise_of


def fly(env: UavEnv, planner: Planner) -> dict[str, torch.Tensor]:
    """Flies one mission in every row; returns F1 at its end, and its mean over the moves."""
    env.reset(77)
    f1 = []
    for _ in range(env.world.num_steps):
        f1.append(env.score()["f1"])
        last = env.step(planner.act(env))
    return {"mean": torch.stack([*f1, last.episode["f1"]]).mean(0), "end": last.episode["f1"]}


def test_greedy_matches_brute_force():
    world = World(map_cells=100, budget=8)
    env = UavEnv(3, world, seed=3, threads=1)
    planner, noise = GreedyPlanner(), noise_of(world)
    random = RandomPlanner(1)
    for step in range(8):
        chosen = planner.act(env)
        for n in range(3):
            mission = ReferenceMission(100, noise, list(world.altitudes_m), env.missions.position[n], 8)
            best = brute_force(mission, env, n, noise, chosen[n].tolist())
            for i, values in enumerate(best):
                top = max(values.values())
                assert values[int(chosen[n, i])] > top - 1e-3 * (1 + abs(top)), (step, n, i, values)
        env.step(chosen if step % 2 else random.act(env))


def brute_force(mission, env, n, noise, chosen) -> list[dict[int, float]]:
    """Returns the expected gain of every allowed move of each UAV, given the choices of the UAVs before it."""
    gains, after = [], []
    for i in range(len(chosen)):
        allowed = mission.masks(chosen)[i]
        p = torch.sigmoid(env.missions.belief[n, i].double() / LOG_ODDS_UNITS).numpy()
        values = {}
        for action in [a for a in range(6) if allowed[a]]:
            target = tuple(np.add(mission.position[i], MOVES[action]))
            gain = expected(p, noise[target[2]]) * mission.visible(target)
            for j, other in enumerate(after):
                if j in heard(env, n)[i]:
                    gain = gain * (1 - expected(p, noise[other[2]]) * mission.visible(other))
            values[action] = float(gain.sum())
        gains.append(values)
        after.append(tuple(np.add(mission.position[i], MOVES[chosen[i]])))
    return gains


def expected(p: np.ndarray, noise: float) -> np.ndarray:
    """Computes the expected W (H_before - H_after) of measuring each cell."""
    total = np.zeros_like(p)
    for likely in (1 - noise, noise):
        chance = p * likely + (1 - p) * (1 - likely)
        after = np.clip(p * likely / chance, 1e-4, 1 - 1e-4)
        total += chance * weight(after) * (entropy(p) - entropy(after))
    return np.maximum(total, 0)


def test_a_lawnmower_stays_at_its_altitude_and_covers_the_map():
    world = World(map_cells=110, budget=29)
    for altitude in range(3):
        env = UavEnv(4, world, seed=8, threads=1)
        planner = LawnmowerPlanner(altitude)
        env.reset(5)
        covered = torch.zeros(4, world.map_cells, world.map_cells, dtype=torch.bool)
        low, high = world.footprints
        for step in range(world.num_steps - 1):
            env.step(planner.act(env))
            for n, team in enumerate(env.missions.position.tolist()):
                for x, y, z in team:
                    covered[n, low[z][x] : high[z][x], low[z][y] : high[z][y]] = True
            if step >= 4:
                assert bool((env.missions.position[:, :, 2] == altitude).float().mean() > 0.9)
        assert float(covered.float().mean((1, 2)).min()) > (0.5, 0.85, 0.97)[altitude]


def test_a_lawnmower_that_is_far_from_its_goal_does_not_change_its_altitude():
    env = UavEnv(1, World(n_agents=1, map_cells=22, budget=1), seed=0, threads=1)
    planner = LawnmowerPlanner(0)
    env.reset(5)
    planner.act(env)
    planner._paths, planner._next = [[[(0, 0)]]], [[0]]
    env.missions.position[:] = torch.tensor([10, 10, 0])
    env.moves = 1
    assert int(MOVES[int(planner.act(env))][2]) == 0


def test_greedy_is_better_than_random():
    env = UavEnv(60, World(map_cells=121), seed=0, threads=1)
    metrics = {name: fly(env, planner) for name, planner in (("random", RandomPlanner(0)), ("greedy", GreedyPlanner()))}
    difference = metrics["greedy"]["mean"] - metrics["random"]["mean"]
    assert float(difference.mean()) > 3 * float(difference.std()) / 60**0.5 > 0


def test_random_moves_are_allowed_and_uniform():
    env = UavEnv(200, World(n_agents=1, map_cells=22, budget=1), seed=0, threads=1)
    counts = torch.zeros(6)
    planner = RandomPlanner(3)
    for _ in range(10):
        position = env.missions.position[:, 0]
        inner = ((position[:, :2] > 0) & (position[:, :2] < 10)).all(1)
        action = planner.act(env)[inner, 0]
        counts += torch.bincount(action, minlength=6)
        env.reset()
    assert counts[0] == 0, "missions start at the highest altitude"
    assert float(counts[1:].min()) > 0.8 * float(counts[1:].max())
