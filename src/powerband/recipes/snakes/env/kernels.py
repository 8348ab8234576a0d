"""Kernels: functions that move or restart all boards, on CPU threads or on CUDA, with the same compiled rules."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba import njit, prange

from powerband.core.machine.cache_stamp import source_checksum
from powerband.envs.numba import hashing
from powerband.envs.numba.arrays import device_array
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.rules import board_moves, rewards
from powerband.recipes.snakes.env.rules import game as rules
from powerband.recipes.snakes.env.rules.board_moves import move_board, write_rows
from powerband.recipes.snakes.env.rules.game import GAME_OVER, RUNNING, SNAKES, TEAM, reset_board
from powerband.recipes.snakes.env.rules.rewards import EPISODE_METRICS

CHUNKS_PER_THREAD = 4
SERIAL_BELOW = 2048  # boards; to wake a thread takes the time of some hundred moves


class MoveArrays(NamedTuple):
    """The tensors of a `MoveBuffers` as arrays for numba. `MoveBuffers` explains the fields."""

    action: Any
    actions: Any
    gain: Any
    outcome: Any
    reward: Any
    terminated: Any
    truncated: Any
    figures: Any


class MoveBuffers:
    """Inputs and outputs of one move on N boards. The learner plays R teams: team A of all boards, and some teams B.

    Attributes:
        action: (R, 3) int64, input: actions of the learner, relative or absolute.
        actions: (N, 6) int64: absolute actions of all snakes, 0..3. Those of the opponents are an input.
        gain: (N, 6) int16: game reward of each snake, the change of its length.
        outcome: (N,) uint8: state of the game after the move: RUNNING, STEP_LIMIT or GAME_OVER.
        reward: (R, 3) float32: reward of each snake that the learner plays.
        terminated: (R,) bool: the game is over; with the reward function SHAPED also True after 200 moves.
        truncated: (R,) bool: the limit of 200 moves ended the game; never True with SHAPED.
        figures: (5, R) float32: results of games that ended: score, opponent_score, win, draw and loss.
    """

    def __init__(self, num_boards: int, num_rows: int, device: torch.device):
        self.action = torch.zeros(num_rows, TEAM, dtype=torch.int64, device=device)
        self.actions = torch.zeros(num_boards, SNAKES, dtype=torch.int64, device=device)
        self.gain = torch.zeros(num_boards, SNAKES, dtype=torch.int16, device=device)
        self.outcome = torch.zeros(num_boards, dtype=torch.uint8, device=device)
        self.reward = torch.zeros(num_rows, TEAM, device=device)
        self.terminated = torch.zeros(num_rows, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(num_rows, dtype=torch.bool, device=device)
        self.figures = torch.zeros(len(EPISODE_METRICS), num_rows, device=device)

    @cached_property
    def arrays(self) -> MoveArrays:
        """Views of the tensors as arrays for numba."""
        return MoveArrays(*(device_array(getattr(self, name)) for name in MoveArrays._fields))


@cache
def cpu_loops() -> tuple[Any, Any, Any]:
    """Compiles and returns three loops over boards for the CPU: ``move``, ``move_parallel`` and ``restart``.

    ``move`` executes one move on the boards start..stop - 1 on the calling thread. ``move_parallel`` executes one move
    on all boards, which it splits into `chunks` parts for several threads. ``restart`` starts new games on the boards
    whose game ended. Each returns the number of ended games.

    Parameters of the loops: `s`: arrays of the boards, a `BoardArrays`; `m`: inputs and outputs of the move, a
    `MoveArrays`; `kind`: reward function GAME, MIXED or SHAPED; `outcome`: (N boards,) state of each game after the
    move. The remaining parameters are those of `move_boards`.
    """
    checksum = source_checksum(hashing, rules, rewards, board_moves)

    @njit(nogil=True, cache=True, **hashing.UNCOUNTED)
    def move(s, start, stop, mirrored, relative, seed, kind, m):
        ended = 0 * checksum
        for b in range(start, stop):
            ended += move_board(s, b, mirrored, relative, seed, m)
        for b in range(start, stop):  # in the loop above it would take three times as long
            write_rows(s, b, mirrored, kind, m)
        return ended

    @njit(nogil=True, cache=True, parallel=True)
    def move_parallel(s, chunks, mirrored, relative, seed, kind, m):
        ended = 0 * checksum
        n = s.grid.shape[0]
        for c in prange(chunks):
            for b in range(c * n // chunks, (c + 1) * n // chunks):
                ended += move_board(s, b, mirrored, relative, seed, m)
            for b in range(c * n // chunks, (c + 1) * n // chunks):
                write_rows(s, b, mirrored, kind, m)
        return ended

    @njit(nogil=True, cache=True, **hashing.UNCOUNTED)
    def restart(s, outcome, seed):
        ended = 0 * checksum
        for b in range(s.grid.shape[0]):
            if outcome[b] != RUNNING:
                reset_board(s, b, seed)
                ended += 1
        return ended

    return move, move_parallel, restart


def move_boards(
    state: SnakesState, moves: MoveBuffers, *, mirrored: int, relative: bool, seed: int, kind: int, threads: int
) -> int | None:
    """Executes one move on all boards.

    Args:
        state: State of the boards, updated in place.
        moves: Buffers with the actions; rewards and results are written into them.
        mirrored: Number of boards, from the first one on, on which the learner also plays team B.
        relative: True if the actions of the learner are relative: 0 forward, 1 left, 2 right.
        seed: Seed, 0..2**64 - 1.
        kind: Reward function, one of the constants GAME, MIXED and SHAPED.
        threads: Number of CPU threads.

    Returns:
        Number of games that ended; None on CUDA, to avoid a host-device synchronisation.
    """
    arguments = (mirrored, relative, np.uint64(seed), kind, moves.arrays)
    if state.grid.device.type == "cpu":
        serial, parallel, _ = cpu_loops()
        if threads == 1 or state.num_boards < SERIAL_BELOW:
            return serial(state.arrays, 0, state.num_boards, *arguments)
        numba.set_num_threads(threads)
        return parallel(state.arrays, threads * CHUNKS_PER_THREAD, *arguments)
    from powerband.recipes.snakes.env import cuda

    cuda.launch_per_board(cuda.move, state, *arguments)
    return None


def restart_boards(state: SnakesState, moves: MoveBuffers, *, seed: int) -> None:
    """Starts a new game on every board whose game ended, which are those whose `moves.outcome` is not RUNNING.

    `seed` is the seed of the random draws, 0..2**64 - 1.
    """
    arguments = (moves.arrays.outcome, np.uint64(seed))
    if state.grid.device.type == "cpu":
        cpu_loops()[2](state.arrays, *arguments)
    else:
        from powerband.recipes.snakes.env import cuda

        cuda.launch_per_board(cuda.restart, state, *arguments)


def restart_all(state: SnakesState, moves: MoveBuffers, *, seed: int) -> None:
    """Starts a new game on every board, and sets `moves.outcome` to GAME_OVER for all of them.

    `seed` is the seed of the random draws, 0..2**64 - 1.
    """
    moves.outcome.fill_(GAME_OVER)
    restart_boards(state, moves, seed=seed)
