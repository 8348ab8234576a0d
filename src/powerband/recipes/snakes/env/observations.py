"""What a team sees of its board: the four observations by name, written by one kernel for any set of boards.

All are symmetric in the teams: team B sees what team A would see if the teams changed places. "Others" are always the
two mates and then the three opponents, both by number. Rows and columns are board coordinates, distances Euclidean over
the edges. Of a missing bean or other snake the position is (-1, -1); a row of a snake that is not on the board is zero.

=========== ======= ================================================================================================
name        actions content, in order
=========== ======= ================================================================================================
baseline26  4       own head row, col; codes of the cells up, down, left, right of it (0 free, 1 bean, 2..4 own team,
                    5..7 opponents); five beans (row, col), oldest first; five other heads (row, col)
fork35      4       the first 16 of those; the two nearest beans as dx (columns), dy (rows), distance; own length / 20;
                    five other heads (row, col); threat of the first two opponents, their length / own length /
                    (distance + 1)
planes      4       (8, 10, 20), shifted so that the own head is at row 5, column 10: beans; bodies of the own snake,
                    the mates and the opponents, each cell the moves until it is left / 32, at most 1; heads of the
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

from powerband.data.types import TensorSpec
from powerband.envs.numba import hashing
from powerband.envs.numba.arrays import device_array
from powerband.envs.numba.cache_stamp import source_checksum
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
SERIAL_BELOW = 64  # boards; a thread takes as long to wake as it does to write some dozen


def relative_to_absolute(direction: Tensor, relative: Tensor) -> Tensor:
    """Absolute actions of the relative ones (0 forward, 1 left, 2 right) of snakes that head for `direction`.

    Args:
        direction: 0..3 = up, down, left, right, any shape and integer dtype.
        relative: The same shape, int64.

    Returns:
        The same shape, int64.
    """
    direction = direction.long()
    left = direction ^ (2 + (direction >> 1))
    return torch.where(relative == 0, direction, left ^ (relative - 1).clamp(min=0))


@cache
def cpu_loops() -> tuple[Any, Any]:
    """(serial, parallel): write `out` (n, 3, D) for the boards start.. or, where `listed`, for those in `index`.

    Rows k with due[k] False are left alone where `masked`.
    """
    made_of = source_checksum(hashing, rules, flood, features, observation_rows)

    @njit(nogil=True, cache=True, _nrt=False)
    def write_some(s, first, last, start, index, listed, due, masked, team, kind, sets, lanes, numbers, out):
        for k in range(first, last + 0 * made_of):
            if not masked or due[k]:
                b = index[k] if listed else start + k
                write_board(s, b, team, kind, sets, lanes, numbers, out[k])

    @njit(nogil=True, cache=True, parallel=True)
    def write_parallel(s, chunks, start, index, listed, due, masked, team, kind, sets, lanes, numbers, out):
        n = out.shape[0] + 0 * made_of
        for c in prange(chunks):
            for k in range(c * n // chunks, (c + 1) * n // chunks):
                if not masked or due[k]:
                    b = index[k] if listed else start + k
                    write_board(s, b, team, kind, sets[c], lanes[c], numbers[c], out[k])

    return write_some, write_parallel


def num_threads() -> int:
    """Threads that numba's loops run on.

    Where numba and torch share one OpenMP, the first question starts numba's threads and thereby gives torch as many;
    torch's own number is put back.
    """
    before = torch.get_num_threads()
    threads = numba.get_num_threads()
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)
    return threads


@cache
def _nothing(device: torch.device) -> tuple[Any, Any]:
    """Stand-ins for an index and a mask that are not read."""
    return device_array(torch.zeros(1, dtype=torch.int64, device=device)), device_array(
        torch.zeros(1, dtype=torch.bool, device=device)
    )


@dataclass(frozen=True)
class Observation:
    """One of the observations; `OBSERVATIONS` has them by name.

    Attributes:
        spec: What one team sees, shape (3, D) or (3, planes, rows, columns), float32.
        num_actions: 3 where actions are relative, else 4.
        relative: Actions are relative to the snake's direction: 0 forward, 1 left, 2 right.
        kind: Its number for the kernels.
    """

    spec: TensorSpec
    num_actions: int
    relative: bool
    kind: int

    def write(
        self, state: SnakesState, team: int, boards: slice | Tensor, out: Tensor, mask: Tensor | None = None
    ) -> None:
        """Writes what `team` sees.

        On CPU it runs on ``numba.get_num_threads()`` threads, on CUDA on torch's current stream.

        Args:
            state: The boards.
            team: 0 = A, 1 = B.
            boards: n boards: a slice with step 1, or their indices, (n,) int64.
            out: (n, *spec.shape) float32, contiguous, written.
            mask: (n,) bool; where given, only the rows where it is True are written.

        Raises:
            ValueError: `out` is of another shape, or a slice has a step.
        """
        listed, start, n = not isinstance(boards, slice), 0, len(boards) if isinstance(boards, Tensor) else 0
        if not listed:
            start, stop, step = boards.indices(state.num_boards)
            n = max(stop - start, 0)
            if step != 1:
                raise ValueError(f"boards is {boards}: give a slice with step 1, or a tensor of indices")
        if out.shape != (n, *self.spec.shape):
            raise ValueError(f"out is {tuple(out.shape)}: give {(n, *self.spec.shape)} for {n} boards")
        if n == 0:
            return
        index, due = _nothing(out.device)
        index = device_array(boards) if listed else index
        due = due if mask is None else device_array(mask)
        where = (start, index, listed, due, mask is not None, team, self.kind)
        rows = device_array(out.view(n, TEAM, -1))
        if out.device.type != "cpu":
            from powerband.recipes.snakes.env import cuda_observe

            cuda_observe.observe(state, *where, rows)
            return
        serial, parallel = cpu_loops()
        threads = num_threads()
        if threads == 1 or n < SERIAL_BELOW:
            serial(state.arrays, 0, n, *where, *(part[0] for part in allocate_scratch(1)), rows)
        else:
            chunks = CHUNKS_PER_THREAD * threads
            parallel(state.arrays, chunks, *where, *allocate_scratch(chunks), rows)


OBSERVATIONS = {
    "baseline26": Observation(TensorSpec((TEAM, 26)), 4, False, BASELINE),
    "fork35": Observation(TensorSpec((TEAM, 35)), 4, False, FORK),
    "planes": Observation(TensorSpec((TEAM, NUM_PLANES, ROWS, COLS)), 4, False, PLANES),
    "features": Observation(TensorSpec((TEAM, NUM_FEATURES)), 3, True, FEATURES),
}
