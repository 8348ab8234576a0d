"""Board moves: one move of a board, and the rows of the learner, compiled by numba for CPU threads and CUDA."""

from __future__ import annotations

import numpy as np
from numba import njit

from powerband.recipes.snakes.env.rules.game import RUNNING, TEAM, absolute_action, step_board
from powerband.recipes.snakes.env.rules.rewards import write_row


@njit(forceinline=True, _nrt=False)  # not cached: see `cpu_loops`
def move_board(s, b, mirrored, relative, seed, m):
    """Gathers the six actions of board `b` and makes the move; True where the game ended.

    The learner's rows are team A of all boards, then team B of the first `mirrored` ones.
    """
    for team in range(2 if b < mirrored else 1):
        row = b + team * s.grid.shape[0]
        for k in range(TEAM):
            i = team * TEAM + k
            chosen = np.int64(m.action[row, k])
            m.actions[b, i] = absolute_action(np.int64(s.direction[b, i]), chosen) if relative else chosen
    outcome = step_board(s, b, m.actions, seed, m.gain)
    m.outcome[b] = outcome
    return outcome != RUNNING


@njit(forceinline=True, _nrt=False)
def write_rows(s, b, mirrored, kind, m):
    """Writes the learner's rows of board `b` after the move."""
    for team in range(2 if b < mirrored else 1):
        write_row(s, b, team, b + team * s.grid.shape[0], kind, m)
