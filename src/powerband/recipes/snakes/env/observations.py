"""Observations: writes the observation of a team, which is one of four kinds, for any set of boards.

All kinds are symmetric: the observation of team B is that of team A after the teams change places. "Others" are the two
mates and then the three opponents, each by number. Rows and columns are board coordinates, and distances are Euclidean
on the torus. Missing beans and snakes have the position (-1, -1); the row of a snake that is not on the board is zero.

=========== ======= ================================================================================================
name        actions content, in order
=========== ======= ================================================================================================
baseline26  4       own head row, col; codes of its neighbours up, down, left, right (0 free, 1 bean, 2..4 own team,
                    5..7 opponents); five beans (row, col), oldest first; five other heads (row, col)
fork35      4       the first 16 of baseline26; the two nearest beans as dx (columns), dy (rows), distance; own
                    length / 20; five other heads (row, col); threat of the first two opponents, their length / own
                    length / (distance + 1)
planes      4       (8, 10, 20), shifted so that the own head is at row 5, column 10: beans; bodies of the own snake,
                    the mates and the opponents, with min(1, moves until the cell is left / 32); heads of the
                    mates and of the opponents; two constant planes: step / 200, lead in team return / 20 within [-1, 1]
features    3       see `features`; its actions are relative
=========== ======= ================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import torch
from numba import njit, prange
from torch import Tensor

from powerband.core.machine.cache_stamp import source_checksum
from powerband.data.types import TensorSpec
from powerband.envs.numba import hashing
from powerband.envs.numba.arrays import device_array
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.rules import features, flood, observation_rows
from powerband.recipes.snakes.env.rules import game as rules
from powerband.recipes.snakes.env.rules.features import NUM_FEATURES
from powerband.recipes.snakes.env.rules.flood import allocate_scratch
from powerband.recipes.snakes.env.rules.game import COLS, ROWS, TEAM
from powerband.recipes.snakes.env.rules.observation_rows import (
    BASELINE,
    FEATURES,
    FORK,
    NUM_PLANES,
    PLANES,
    write_board,
)

CHUNKS_PER_THREAD = 4
SERIAL_BELOW = 64  # boards; to wake a thread takes the time of some dozen boards


def relative_to_absolute(direction: Tensor, relative: Tensor) -> Tensor:
    """Converts relative actions (0 forward, 1 left, 2 right) to absolute ones.

    Args:
        direction: Directions 0..3 (up, down, left, right) of the snakes, of any shape and integer type.
        relative: Relative actions int64 of the same shape.

    Returns:
        Absolute actions int64 of the same shape.
    """
    direction = direction.long()
    left = direction ^ (2 + (direction >> 1))
    return torch.where(relative == 0, direction, left ^ (relative - 1).clamp(min=0))


@cache
def cpu_loops() -> tuple[Any, Any]:
    """Compiles the CPU loops that write the observations of one team on n boards.

    Returns:
        The loops (serial, parallel). The serial loop writes the observations `first` to `last` - 1 of the n boards on
        the calling thread. The parallel loop splits the n boards into `chunks` parts for several threads.

    Parameters of both loops:
        s: Arrays of all boards, a `BoardArrays`.
        start, index, listed: The n boards are those in `index` (n,) if `listed`, otherwise start, start + 1, ...
        due, masked: If `masked`, out[k] stays unchanged for each k for which due[k] is False.
        team: 0 = A, 1 = B.
        kind: Kind of observation, one of the constants BASELINE, FORK, PLANES and FEATURES.
        sets, lanes, numbers: Scratch arrays, in which FEATURES computes which cells snakes can reach, see
            `flood.Scratch`. Those of the parallel loop have a further first axis with one entry per chunk.
        out: (n, 3, D) float32, written, with D numbers per snake.
    """
    checksum = source_checksum(hashing, rules, flood, features, observation_rows)

    @njit(nogil=True, cache=True, **hashing.UNCOUNTED)
    def write_some(s, first, last, start, index, listed, due, masked, team, kind, sets, lanes, numbers, out):
        for k in range(first, last + 0 * checksum):
            if not masked or due[k]:
                b = index[k] if listed else start + k
                write_board(s, b, team, kind, sets, lanes, numbers, out[k])

    @njit(nogil=True, cache=True, parallel=True)
    def write_parallel(s, chunks, start, index, listed, due, masked, team, kind, sets, lanes, numbers, out):
        n = out.shape[0] + 0 * checksum
        for c in prange(chunks):
            for k in range(c * n // chunks, (c + 1) * n // chunks):
                if not masked or due[k]:
                    b = index[k] if listed else start + k
                    write_board(s, b, team, kind, sets[c], lanes[c], numbers[c], out[k])

    return write_some, write_parallel


def num_threads() -> int:
    """Returns the number of threads of numba's parallel loops, without a change of torch's number of threads.

    If numba and torch share one OpenMP library, the first query starts the threads of numba and changes torch's number.
    This function restores it.
    """
    before = torch.get_num_threads()
    threads = numba.get_num_threads()
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)
    return threads


@cache
def _unused_arguments(device: torch.device) -> tuple[Any, Any]:
    """Returns (index, due): placeholder arrays for loops of `cpu_loops` that use neither of these parameters."""
    return device_array(torch.zeros(1, dtype=torch.int64, device=device)), device_array(
        torch.zeros(1, dtype=torch.bool, device=device)
    )


@dataclass(frozen=True)
class Observation:
    """One kind of observation: its shape, its actions, and how to write it. `OBSERVATIONS` contains all kinds.

    Attributes:
        spec: Spec of the observation of one team, float32 (3, D numbers per snake) or (3, planes, rows, columns).
        num_actions: 3 if actions are relative, otherwise 4.
        relative: True if actions are relative to the direction of the snake: 0 forward, 1 left, 2 right.
        kind: Constant that selects the observation in the kernels: BASELINE, FORK, PLANES or FEATURES.
    """

    spec: TensorSpec
    num_actions: int
    relative: bool
    kind: int

    def write(
        self, state: SnakesState, team: int, boards: slice | Tensor, out: Tensor, mask: Tensor | None = None
    ) -> None:
        """Writes the observations of `team` on n boards to `out`.

        On a CPU it runs on ``numba.get_num_threads()`` threads, on CUDA in the current stream of torch.

        Args:
            state: State of the boards.
            team: Team, 0 = A or 1 = B.
            boards: n boards, as a slice with step 1 or as indices (n,) int64.
            out: Contiguous output (n, *spec.shape) float32.
            mask: (n,) bool, True for the rows of `out` to write; None writes all rows.

        Raises:
            ValueError: `out` has another shape, or a slice has a step.
        """
        listed, start, n = not isinstance(boards, slice), 0, len(boards) if isinstance(boards, Tensor) else 0
        if isinstance(boards, slice):
            start, stop, step = boards.indices(state.num_boards)
            n = max(stop - start, 0)
            if step != 1:
                raise ValueError(f"boards={boards} has a step. Pass a slice with step 1, or a tensor of indices.")
        if out.shape != (n, *self.spec.shape):
            raise ValueError(f"out has shape {tuple(out.shape)}. For {n} boards it must be {(n, *self.spec.shape)}.")
        if n == 0:
            return
        index, due = _unused_arguments(out.device)
        index = index if isinstance(boards, slice) else device_array(boards)
        due = due if mask is None else device_array(mask)
        arguments = (start, index, listed, due, mask is not None, team, self.kind)
        rows = device_array(out.view(n, TEAM, -1))
        if out.device.type != "cpu":
            from powerband.recipes.snakes.env import cuda_observe

            cuda_observe.observe(state, *arguments, rows)
            return
        serial, parallel = cpu_loops()
        threads = num_threads()
        if threads == 1 or n < SERIAL_BELOW:
            serial(state.arrays, 0, n, *arguments, *(part[0] for part in allocate_scratch(1)), rows)
        else:
            chunks = CHUNKS_PER_THREAD * threads
            parallel(state.arrays, chunks, *arguments, *allocate_scratch(chunks), rows)


OBSERVATIONS = {
    "baseline26": Observation(TensorSpec((TEAM, 26)), 4, False, BASELINE),
    "fork35": Observation(TensorSpec((TEAM, 35)), 4, False, FORK),
    "planes": Observation(TensorSpec((TEAM, NUM_PLANES, ROWS, COLS)), 4, False, PLANES),
    "features": Observation(TensorSpec((TEAM, NUM_FEATURES)), 3, True, FEATURES),
}
