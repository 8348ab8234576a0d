"""Opponents: players of the other team that move at random, greedily, or by a policy.

Each opponent has ``act(env, boards)`` for team B on a slice of the boards, and ``act_team(state, boards, team, seed)``
for either team, so that evaluations can swap sides. Both return absolute actions: 0..3 = up, down, left, right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.machine.cache_stamp import source_checksum
from powerband.envs.numba import hashing
from powerband.envs.numba.arrays import device_array
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.observations import OBSERVATIONS, relative_to_absolute
from powerband.recipes.snakes.env.rules import features, flood, opponent_moves
from powerband.recipes.snakes.env.rules import game as rules
from powerband.recipes.snakes.env.rules.game import TEAM
from powerband.recipes.snakes.env.rules.opponent_moves import GREEDY, GREEDY_TORUS, RANDOM, choose


@cache
def cpu_loop() -> Any:
    """Compiles and returns the CPU loop that chooses the moves of a team by a fixed rule on n boards.

    The loop is ``choose_all(s, start, team, kind, seed, actions)``. It writes to `actions` (n, 3) int64 for the boards
    start, start + 1, ... `s`: arrays of all boards, a `BoardArrays`; `team`: 0 = A, 1 = B; `kind`: the rule RANDOM,
    GREEDY or GREEDY_TORUS; `seed`: seed of random moves as uint64.
    """
    checksum = source_checksum(hashing, rules, flood, features, opponent_moves)

    @njit(nogil=True, cache=True, **hashing.UNCOUNTED)
    def choose_all(s, start, team, kind, seed, actions):
        for k in range(actions.shape[0] + 0 * checksum):
            choose(s, start + k, team, kind, seed, actions[k])

    return choose_all


class _Scripted:
    """Base class of opponents that follow a fixed rule, which numba compiles.

    `kind` is the number of the rule: RANDOM, GREEDY or GREEDY_TORUS. `seed` is added to the seed of the environment.
    """

    kind: int
    seed = 0

    def act(self, env: Any, boards: slice) -> Tensor:
        """Computes actions (n, 3) int64 of team B on the n `boards` of `env`: 0..3 = up, down, left, right."""
        return self.act_team(env.state, boards, 1, env.seed)

    def act_team(self, state: SnakesState, boards: slice, team: int, seed: int = 0) -> Tensor:
        """Computes actions (n, 3) int64 of `team` (0 = A, 1 = B) on n boards: 0..3 = up, down, left, right.

        `seed` determines random moves; greedy opponents do not use it.
        """
        start, stop, _ = boards.indices(state.num_boards)
        actions = torch.empty(stop - start, TEAM, dtype=torch.int64, device=state.grid.device)
        if stop > start:
            arguments = (start, team, self.kind, np.uint64((seed + self.seed) % 2**64), device_array(actions))
            if actions.device.type == "cpu":
                cpu_loop()(state.arrays, *arguments)
            else:
                from powerband.recipes.snakes.env import cuda_observe

                cuda_observe.choose_all(state, *arguments)
        return actions


class RandomOpponent(_Scripted):
    """Opponent with uniformly random directions, which depend only on the seed, the board, the move and the snake."""

    kind = RANDOM

    def __init__(self, seed: int = 0):
        """Creates the opponent. `seed` is added to the seed of the environment, so that opponents can differ."""
        self.seed = seed


class GreedyOpponent(_Scripted):
    """Opponent whose snakes move to the nearest bean that no earlier mate moves to, and avoid occupied cells."""

    def __init__(self, distance: Literal["plain", "torus"] = "plain"):
        """Creates the opponent.

        Args:
            distance: ``plain`` measures distances that do not cross the edges of the board, as the public baseline
                does; ``torus`` also measures across the edges.

        Raises:
            ConfigError: `distance` is neither plain nor torus.
        """
        if distance not in ("plain", "torus"):
            raise ConfigError(f"Unknown distance {distance!r}. Available: plain, torus.")
        self.kind = GREEDY_TORUS if distance == "torus" else GREEDY


class PolicyOpponent:
    """Opponent that acts with a policy: a snapshot, a checkpoint, or any function of observations."""

    def __init__(self, act_fn: Callable[[Tensor], Tensor] | None, observation: str = "features"):
        """
        Args:
            act_fn: Function from observations (n, 3, D) float32 to actions (n, 3) int64, for n boards, three snakes and
                D numbers per snake. Actions are relative to the snake's heading if the observation is ``features``, and
                absolute directions otherwise. None if the attribute `act_fn` is set later, before the first move.
            observation: Name of the observation that `act_fn` reads, in `OBSERVATIONS`; it can differ from the
                observation of the environment.

        Raises:
            ConfigError: `observation` is not in `OBSERVATIONS`.
        """
        if observation not in OBSERVATIONS:
            raise ConfigError(f"Unknown observation {observation!r}. Available: {', '.join(OBSERVATIONS)}.")
        self.act_fn = act_fn
        self.observation = OBSERVATIONS[observation]

    def act(self, env: Any, boards: slice) -> Tensor:
        """Computes actions (n, 3) int64 of team B on the n `boards` of `env`: 0..3 = up, down, left, right."""
        return self.act_team(env.state, boards, 1)

    @torch.no_grad()
    def act_team(self, state: SnakesState, boards: slice, team: int, seed: int = 0) -> Tensor:
        """Computes actions (n, 3) int64 of `team` (0 = A, 1 = B) on n boards: 0..3 = up, down, left, right.

        `seed` is not used, because the policy makes the choice.
        """
        start, stop, _ = boards.indices(state.num_boards)
        obs = self.observation.spec.zeros(stop - start, device=state.grid.device)
        self.observation.write(state, team, slice(start, stop), obs)
        assert self.act_fn is not None
        action = self.act_fn(obs)
        if not self.observation.relative:
            return action
        return relative_to_absolute(state.direction[start:stop, TEAM * team : TEAM * (team + 1)], action)
