"""Board moves: one step of the game on one board, with the rewards of the learner's teams, for CPU threads and CUDA."""

from __future__ import annotations

import numpy as np
from numba import njit

from powerband.envs.numba.hashing import UNCOUNTED
from powerband.recipes.snakes.env.rules.game import RUNNING, TEAM, absolute_action, step_board
from powerband.recipes.snakes.env.rules.rewards import write_row


@njit(forceinline=True, **UNCOUNTED)  # not cached: see `cpu_loops`
def move_board(s, b, mirrored, relative, seed, m):
    """Executes one move of the game on board `b`, with the actions in `m`; returns True if the game ended.

    The learner has one row of actions per team that it plays: team A of all boards, then team B of the first `mirrored`
    boards.

    Args:
        s: Arrays of all boards, a `BoardArrays`.
        b: Index of the board.
        mirrored: Number of boards on which the learner plays both teams.
        relative: True if the actions of the learner are 0 forward, 1 left, 2 right.
        seed: Seed as uint64.
        m: Inputs and outputs of the move, a `MoveArrays`.
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


@njit(forceinline=True, **UNCOUNTED)
def write_rows(s, b, mirrored, kind, m):
    """Writes the rewards of the last move on board `b` to `m`, for each team that the learner plays.

    It also writes whether the game ended, and its results if it did. `s`: arrays of all boards; `mirrored`: number of
    boards on which the learner plays both teams; `kind`: reward GAME, MIXED or SHAPED; `m`: inputs and outputs of the
    move, a `MoveArrays`.
    """
    for team in range(2 if b < mirrored else 1):
        write_row(s, b, team, b + team * s.grid.shape[0], kind, m)
