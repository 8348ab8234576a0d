"""Planners: baselines that do not learn, which move at random, in lanes, or by expected information gain.

Each planner has ``act(env) -> (N, A) int64``, which chooses the moves of A UAVs in N missions.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from powerband.core.noise import Noise
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.kernels import run
from powerband.recipes.uav.env.rules.information_gain import expected_gains
from powerband.recipes.uav.env.rules.moves import step_x, step_y, step_z
from powerband.recipes.uav.settings import FIELD_OF_VIEW, LATTICE, NUM_ACTIONS, SPACING_M, World


class Planner(Protocol):
    """A baseline that chooses moves without a learned policy."""

    def act(self, env: UavEnv) -> Tensor:
        """Chooses moves (N, A) int64 for the A UAVs of N missions."""


class RandomPlanner:
    """Planner that chooses uniformly at random among the allowed moves of each UAV; `seed` determines the draws."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._noise: Noise | None = None

    def act(self, env: UavEnv) -> Tensor:
        """Chooses moves (N, A) int64 for the A UAVs of N missions."""
        if self._noise is None:
            self._noise = Noise(self.seed, "planner", env.missions.mission, env.device)
        shape = (env.num_envs, env.world.n_agents)
        uniform = torch.full((*shape, NUM_ACTIONS), 1 / NUM_ACTIONS, device=env.device)
        return env.masked_sample(uniform, self._noise.uniform(shape[1]))[0]


class LawnmowerPlanner:
    """Planner with which each UAV scans one strip of the map, lane by lane, at one altitude.

    The map has one strip per UAV, assigned in the order of the y coordinates at the start. The distance between lanes
    is the width of the footprint, the square that the camera sees. A UAV first flies to the altitude and to the nearer
    end of the nearer outer lane of its strip.

    Args:
        altitude: Index of the altitude in `World.altitudes_m`.
    """

    def __init__(self, altitude: int) -> None:
        self.altitude = altitude
        self._paths: list[list[list[tuple[int, int]]]] = []
        self._next: list[list[int]] = []

    def act(self, env: UavEnv) -> Tensor:
        """Chooses moves (N, A) int64 for the A UAVs of N missions."""
        positions = env.missions.position.tolist()
        if env.moves == 0:
            self._paths = [self._plan(team, env.world) for team in positions]
            self._next = [[0] * env.world.n_agents for _ in positions]
        score = torch.zeros(env.num_envs, env.world.n_agents, NUM_ACTIONS)
        for n, team in enumerate(positions):
            for i, (x, y, z) in enumerate(team):
                path = self._paths[n][i]
                if (x, y) == path[self._next[n][i] % len(path)] and z == self.altitude:
                    self._next[n][i] += 1
                goal_x, goal_y = path[self._next[n][i] % len(path)]
                for action in range(NUM_ACTIONS):
                    target = x + step_x(action), y + step_y(action), z + step_z(action)
                    distance = abs(goal_x - target[0]) + abs(goal_y - target[1]) + abs(self.altitude - target[2])
                    climbs = abs(self.altitude - target[2]) < abs(self.altitude - z)  # or descends towards its altitude
                    score[n, i, action] = 1 / (1 + distance) + (0.01 if climbs else 0.0)
        return env.masked_sample(score.to(env.device), None)[0]

    def _plan(self, team: list[list[int]], world: World) -> list[list[tuple[int, int]]]:
        """Returns, for each UAV of a team, the ends (x, y) of its lanes on the lattice, in the order of its visits.

        `team` contains the start position (lattice x, lattice y, altitude index) of each UAV.
        """
        footprint = 2 * world.altitudes_m[self.altitude] * math.tan(FIELD_OF_VIEW / 2)
        spacing = max(1, int(footprint / SPACING_M))
        order = sorted(range(len(team)), key=lambda i: team[i][1])
        paths: list[list[tuple[int, int]]] = [[] for _ in team]
        for strip, i in enumerate(order):
            low, high = strip * LATTICE / len(team), (strip + 1) * LATTICE / len(team)
            count = max(1, round((high - low) / spacing))
            lanes = [min(LATTICE - 1, int(low + (k + 0.5) * (high - low) / count)) for k in range(count)]
            if abs(lanes[-1] - team[i][1]) < abs(lanes[0] - team[i][1]):
                lanes.reverse()
            end = 0 if team[i][0] < LATTICE / 2 else LATTICE - 1
            for lane in lanes:
                paths[i] += [(end, lane), (LATTICE - 1 - end, lane)]
                end = LATTICE - 1 - end
        return paths


class GreedyPlanner:
    """Planner that looks one move ahead, and chooses the move with the largest expected information gain.

    Args:
        shared: True discounts the gain of cells that a UAV with a lower index will measure, if its message arrived, so
            that UAVs avoid measuring the same cells. False computes the gain of each UAV on its own.
    """

    def __init__(self, shared: bool = True) -> None:
        self.shared = shared
        self._gains: Tensor | None = None

    def act(self, env: UavEnv) -> Tensor:
        """Chooses moves (N, A) int64 for the A UAVs of N missions."""
        if self._gains is None:
            self._gains = torch.from_numpy(expected_gains(env.world)).to(env.device)
        shape = (env.num_envs, env.world.n_agents)
        chosen = torch.zeros(shape, dtype=torch.int64, device=env.device)
        mask = torch.zeros(*shape, NUM_ACTIONS, dtype=torch.bool, device=env.device)
        value = torch.zeros(*shape, NUM_ACTIONS, device=env.device)
        run("greedy", env.missions, env.tables, env.threads, self._gains, self.shared, chosen, mask, value)
        return chosen
