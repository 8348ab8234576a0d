"""Who plays team B: random moves, greedy bean eaters, or a policy.

Every opponent has ``act(env, boards)`` for team B of a slice of an environment's boards and ``act_team(state, boards,
team, seed)`` for either team, so that an evaluation can swap sides. Both return absolute actions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from torch import Tensor

from powerband.envs.numba import hashing
from powerband.envs.numba.arrays import device_array
from powerband.envs.numba.cache_stamp import source_checksum
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.observations import OBSERVATIONS, relative_to_absolute
from powerband.recipes.snakes.env.rules import features, flood, opponent_moves
from powerband.recipes.snakes.env.rules import game as rules
from powerband.recipes.snakes.env.rules.game import TEAM
from powerband.recipes.snakes.env.rules.opponent_moves import GREEDY, GREEDY_TORUS, RANDOM, choose


@cache
def cpu_loop() -> Any:
    """The loop over boards start.. for the rows of `actions` (n, 3)."""
    made_of = source_checksum(hashing, rules, flood, features, opponent_moves)

    @njit(nogil=True, cache=True, _nrt=False)
    def choose_all(s, start, team, kind, seed, actions):
        for k in range(actions.shape[0] + 0 * made_of):
            choose(s, start + k, team, kind, seed, actions[k])

    return choose_all


class _Scripted:
    """An opponent that is a kernel."""

    kind: int
    seed = 0

    def act(self, env: Any, boards: slice) -> Tensor:
        """(n, 3) int64 absolute actions of team B on `boards` of `env`."""
        return self.act_team(env.state, boards, 1, env.seed)

    def act_team(self, state: SnakesState, boards: slice, team: int, seed: int = 0) -> Tensor:
        """(n, 3) int64 absolute actions of `team` (0 = A, 1 = B) on `boards`; `seed` counts where moves are random."""
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
    """Moves uniformly among the four directions; draws depend on seed, board, tick and snake only."""

    kind = RANDOM

    def __init__(self, seed: int = 0):
        """`seed` is added to the environment's."""
        self.seed = seed


class GreedyOpponent(_Scripted):
    """Each snake goes for its nearest bean that no earlier snake of its team goes for, and avoids occupied cells."""

    def __init__(self, distance: Literal["plain", "torus"] = "plain"):
        """`plain` measures distances across the board as the public baseline does, `torus` over the edges as well.

        Raises:
            ValueError: Another word.
        """
        if distance not in ("plain", "torus"):
            raise ValueError(f"distance is {distance!r}: give 'plain' or 'torus'")
        self.kind = GREEDY_TORUS if distance == "torus" else GREEDY


class PolicyOpponent:
    """A policy: a past self, a checkpoint, or any function of observations."""

    def __init__(self, act_fn: Callable[[Tensor], Tensor], observation: str = "features"):
        """Builds the opponent.

        Args:
            act_fn: (n, 3, D) float32 -> (n, 3) int64 actions as the observation has them: relative with `features`.
            observation: A name of `OBSERVATIONS`; it need not be the one of the environment.

        Raises:
            ValueError: An unknown name.
        """
        if observation not in OBSERVATIONS:
            raise ValueError(f"observation {observation!r} is unknown: give one of {', '.join(OBSERVATIONS)}")
        self.act_fn = act_fn
        self.observation = OBSERVATIONS[observation]

    def act(self, env: Any, boards: slice) -> Tensor:
        """(n, 3) int64 absolute actions of team B on `boards` of `env`."""
        return self.act_team(env.state, boards, 1)

    @torch.no_grad()
    def act_team(self, state: SnakesState, boards: slice, team: int, seed: int = 0) -> Tensor:
        """(n, 3) int64 absolute actions of `team` (0 = A, 1 = B) on `boards`; `seed` is not used."""
        start, stop, _ = boards.indices(state.num_boards)
        obs = self.observation.spec.zeros(stop - start, device=state.grid.device)
        self.observation.write(state, team, slice(start, stop), obs)
        action = self.act_fn(obs)
        if not self.observation.relative:
            return action
        return relative_to_absolute(state.direction[start:stop, TEAM * team : TEAM * (team + 1)], action)
