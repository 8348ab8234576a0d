"""Planners: what is allowed, what greed would choose by brute force, what a lawnmower covers."""

from __future__ import annotations

import numpy as np
import torch

from powerband.envs.uav.env import UavEnv
from powerband.envs.uav.planners import GreedyPlanner, Lawnmower, RandomPlanner
from powerband.envs.uav.world import UNITS, World

from .reference import MOVES, PlainMission, entropy, weight
from .test_mission import heard, noise_of


def fly(env: UavEnv, planner) -> dict[str, torch.Tensor]:
    """Scores at the end of one mission in every row, and the mean over its moves."""
    env.reset(77)
    f1 = []
    for _ in range(env.world.num_steps):
        f1.append(env.score()["f1"])
        last = env.step(planner.act(env))
    return {"mean": torch.stack([*f1, last.episode["f1"]]).mean(0), "end": last.episode["f1"]}


def test_greedy_takes_what_brute_force_would():
    world = World(map_cells=100, budget=8)
    env = UavEnv(3, world, seed=3, threads=1)
    planner, noise = GreedyPlanner(), noise_of(world)
    random = RandomPlanner(1)
    for step in range(8):
        chosen = planner.act(env)
        for n in range(3):
            mission = PlainMission(100, noise, list(world.altitudes_m), env.missions.position[n], 8)
            best = brute_force(mission, env, n, noise, chosen[n].tolist())
            for i, values in enumerate(best):
                top = max(values.values())
                assert values[int(chosen[n, i])] > top - 1e-3 * (1 + abs(top)), (step, n, i, values)
        env.step(chosen if step % 2 else random.act(env))


def brute_force(mission, env, n, noise, chosen) -> list[dict[int, float]]:
    """For each UAV, the expected gain of every move it is allowed, given what those before it chose."""
    found, after = [], []
    for i in range(len(chosen)):
        allowed = mission.masks(chosen)[i]
        p = torch.sigmoid(env.missions.belief[n, i].double() / UNITS).numpy()
        values = {}
        for action in [a for a in range(6) if allowed[a]]:
            there = tuple(np.add(mission.position[i], MOVES[action]))
            gain = expected(p, noise[there[2]]) * mission.seen(there)
            for j, other in enumerate(after):
                if j in heard(env, n)[i]:
                    gain = gain * (1 - expected(p, noise[other[2]]) * mission.seen(other))
            values[action] = float(gain.sum())
        found.append(values)
        after.append(tuple(np.add(mission.position[i], MOVES[chosen[i]])))
    return found


def expected(p: np.ndarray, noise: float) -> np.ndarray:
    """Expected W (H_before - H_after) of measuring each cell."""
    total = np.zeros_like(p)
    for likely in (1 - noise, noise):
        chance = p * likely + (1 - p) * (1 - likely)
        after = np.clip(p * likely / chance, 1e-4, 1 - 1e-4)
        total += chance * weight(after) * (entropy(p) - entropy(after))
    return np.maximum(total, 0)


def test_a_lawnmower_flies_at_its_altitude_and_covers_its_strips():
    world = World(map_cells=110, budget=29)
    for altitude in range(3):
        env = UavEnv(4, world, seed=8, threads=1)
        planner = Lawnmower(altitude)
        env.reset(5)
        seen = torch.zeros(4, world.map_cells, world.map_cells, dtype=torch.bool)
        low, high = world.footprints
        for step in range(world.num_steps - 1):
            env.step(planner.act(env))
            for n, team in enumerate(env.missions.position.tolist()):
                for x, y, z in team:
                    seen[n, low[z, x] : high[z, x], low[z, y] : high[z, y]] = True
            if step >= 4:
                assert bool((env.missions.position[:, :, 2] == altitude).float().mean() > 0.9)
        assert float(seen.float().mean((1, 2)).min()) > (0.5, 0.85, 0.97)[altitude]


def test_planners_rank_as_one_would_think():
    env = UavEnv(60, World(map_cells=121), seed=0, threads=1)
    flown = {name: fly(env, planner) for name, planner in (("random", RandomPlanner(0)), ("greedy", GreedyPlanner()))}
    difference = flown["greedy"]["mean"] - flown["random"]["mean"]
    assert float(difference.mean()) > 3 * float(difference.std()) / 60**0.5 > 0


def test_random_moves_are_allowed_and_even():
    env = UavEnv(200, World(n_agents=1, map_cells=22, budget=1), seed=0, threads=1)
    counts = torch.zeros(6)
    planner = RandomPlanner(3)
    for _ in range(10):
        at = env.missions.position[:, 0]
        inner = ((at[:, :2] > 0) & (at[:, :2] < 10)).all(1)
        action = planner.act(env)[inner, 0]
        counts += torch.bincount(action, minlength=6)
        env.reset()
    assert counts[0] == 0, "it starts at the highest altitude"
    assert float(counts[1:].min()) > 0.8 * float(counts[1:].max())
