"""Planners that learn nothing: random moves, a lawnmower at a fixed altitude, greedy information gain.

Each has ``act(env) -> (N, A) int64`` for the missions of an environment as they are now.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerband.core.noise import Noise

from .env import UavEnv
from .kernels import run
from .planning import expected_gains
from .rules import step_x, step_y, step_z
from .world import FIELD_OF_VIEW, LATTICE, NUM_ACTIONS, SPACING_M, World


class RandomPlanner:
    """Any move that is allowed, each as likely."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._noise: Noise | None = None

    def act(self, env: UavEnv) -> Tensor:
        """(N, A) int64."""
        if self._noise is None:
            self._noise = Noise(self.seed, "planner", env.missions.mission, env.device)
        shape = (env.num_envs, env.world.n_agents)
        even = torch.full((*shape, NUM_ACTIONS), 1 / NUM_ACTIONS, device=env.device)
        return env.masked_sample(even, self._noise.uniform(shape[1]))[0]


class Lawnmower:
    """Every UAV mows a strip of its own, lane by lane, at one altitude.

    The map is cut into as many strips as there are UAVs, given out in the order of their starts; lanes are as far apart
    as the footprint is wide. A UAV flies to its altitude and to the nearer end of its nearest outer lane.

    Args:
        altitude: Index of the altitude.
    """

    def __init__(self, altitude: int) -> None:
        self.altitude = altitude
        self._paths: list[list[list[tuple[int, int]]]] = []
        self._at: list[list[int]] = []

    def act(self, env: UavEnv) -> Tensor:
        """(N, A) int64."""
        positions = env.missions.position.tolist()
        if env.made == 0:
            self._paths = [self._plan(team, env.world) for team in positions]
            self._at = [[0] * env.world.n_agents for _ in positions]
        wishes = torch.zeros(env.num_envs, env.world.n_agents, NUM_ACTIONS)
        for n, team in enumerate(positions):
            for i, (x, y, z) in enumerate(team):
                path = self._paths[n][i]
                if (x, y) == path[self._at[n][i] % len(path)] and z == self.altitude:
                    self._at[n][i] += 1
                goal_x, goal_y = path[self._at[n][i] % len(path)]
                for action in range(NUM_ACTIONS):
                    there = x + step_x(action), y + step_y(action), z + step_z(action)
                    left = abs(goal_x - there[0]) + abs(goal_y - there[1]) + abs(self.altitude - there[2])
                    wishes[n, i, action] = 1 / (1 + left) + (0.01 if step_z(action) else 0.0)
        return env.masked_sample(wishes.to(env.device), None)[0]

    def _plan(self, team: list[list[int]], world: World) -> list[list[tuple[int, int]]]:
        """The ends of each UAV's lanes, in the order in which it flies to them."""
        footprint = 2 * world.altitudes_m[self.altitude] * math.tan(FIELD_OF_VIEW / 2)
        apart = max(1, int(footprint / SPACING_M))
        order = sorted(range(len(team)), key=lambda i: team[i][1])
        paths: list[list[tuple[int, int]]] = [[] for _ in team]
        for strip, i in enumerate(order):
            low, high = strip * LATTICE / len(team), (strip + 1) * LATTICE / len(team)
            count = max(1, round((high - low) / apart))
            lanes = [min(LATTICE - 1, int(low + (k + 0.5) * (high - low) / count)) for k in range(count)]
            if abs(lanes[-1] - team[i][1]) < abs(lanes[0] - team[i][1]):
                lanes.reverse()
            end = 0 if team[i][0] < LATTICE / 2 else LATTICE - 1
            for lane in lanes:
                paths[i] += [(end, lane), (LATTICE - 1 - end, lane)]
                end = LATTICE - 1 - end
        return paths


class GreedyPlanner:
    """One step ahead: the move after which the next measurement is expected to tell most.

    Args:
        shared: Discount what UAVs that were heard are about to see.
    """

    def __init__(self, shared: bool = True) -> None:
        self.shared = shared
        self._gains: Tensor | None = None

    def act(self, env: UavEnv) -> Tensor:
        """(N, A) int64."""
        if self._gains is None:
            self._gains = torch.from_numpy(expected_gains(env.world)).to(env.device)
        shape = (env.num_envs, env.world.n_agents)
        chosen = torch.zeros(shape, dtype=torch.int64, device=env.device)
        mask = torch.zeros(*shape, NUM_ACTIONS, dtype=torch.bool, device=env.device)
        value = torch.zeros(*shape, NUM_ACTIONS, device=env.device)
        run("greedy", env.missions, env.tables, env.threads, self._gains, self.shared, chosen, mask, value)
        return chosen
