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

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from powerband.data.types import TensorSpec
from powerband.envs import hashing
from powerband.envs.arrays import device_array
from powerband.envs.compiled import stamp

from . import features, flood, rules
from .board import SnakesState
from .features import NUM_FEATURES, clipped, wrapped, write_features
from .flood import alive, inlined, scratch, survey
from .rules import BEANS, CELLS, COLS, MAX_STEPS, ROWS, SNAKE, SNAKES, TEAM, neighbour

BASELINE, FORK, PLANES, FEATURES = 0, 1, 2, 3
NUM_PLANES = 8
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


# -- rows -------------------------------------------------------------------------------------------------------------


@inlined
def put_position(cell, row, at):
    """Writes row and column of `cell`, or (-1, -1) where it is negative."""
    row[at] = cell // COLS if cell >= 0 else -1
    row[at + 1] = cell % COLS if cell >= 0 else -1


@inlined
def seen_as(other, team):
    """Number of a snake as a member of `team` counts: 0..2 its own team, 3..5 the opponents; its own inverse."""
    return other if team == 0 else (other + TEAM) % SNAKES


@inlined
def put_heads(s, b, i, row, at):
    """Writes the positions of the five other heads."""
    team = i // TEAM
    for k in range(SNAKES):
        other = seen_as(k, team)
        if other != i:
            put_position(np.int64(s.head[b, other]) if alive(s, b, other) else -1, row, at)
            at += 2


@inlined
def torus_length(here, there):
    """Euclidean distance over the edges."""
    down = wrapped(there // COLS - here // COLS, ROWS)
    right = wrapped(there % COLS - here % COLS, COLS)
    return math.sqrt(down * down + right * right)


@inlined
def write_sixteen(s, b, i, row):
    """Writes what baseline26 and fork35 have in common."""
    head = np.int64(s.head[b, i])
    put_position(head, row, 0)
    for direction in range(4):
        code = np.int64(s.grid[b, neighbour(head, direction)])
        row[2 + direction] = code if code < SNAKE else SNAKE + seen_as(code - SNAKE, i // TEAM)
    for j in range(BEANS):
        put_position(np.int64(s.beans[b, j]), row, 6 + 2 * j)


@inlined
def write_fork(s, b, i, row):
    """Writes the numbers of fork35 after the first 16."""
    head, length = np.int64(s.head[b, i]), np.int64(s.length[b, i])
    used = -1
    for k in range(2):
        nearest, distance = -1, 1e9
        for j in range(BEANS):
            bean = np.int64(s.beans[b, j])
            if bean >= 0 and j != used and torus_length(head, bean) < distance:
                nearest, distance = j, torus_length(head, bean)
        used = nearest
        bean = np.int64(s.beans[b, nearest]) if nearest >= 0 else head
        row[16 + 3 * k] = wrapped(bean % COLS - head % COLS, COLS)
        row[17 + 3 * k] = wrapped(bean // COLS - head // COLS, ROWS)
        row[18 + 3 * k] = distance if nearest >= 0 else 0.0
    row[22] = length * 0.05
    put_heads(s, b, i, row, 23)
    for k in range(2):
        other = seen_as(TEAM + k, i // TEAM)
        if alive(s, b, other):
            distance = torus_length(head, np.int64(s.head[b, other]))
            row[33 + k] = np.int64(s.length[b, other]) / length / (distance + 1.0)


@inlined
def seen_from(head, cell):
    """`cell` after the shift that brings `head` to the middle."""
    row = (cell // COLS - head // COLS + ROWS + ROWS // 2) % ROWS
    return row * COLS + (cell % COLS - head % COLS + COLS + COLS // 2) % COLS


@inlined
def write_planes(s, b, i, row):
    """Writes the 8 planes into a row of zeros."""
    head, lead = np.int64(s.head[b, i]), 0
    for j in range(BEANS):
        if s.beans[b, j] >= 0:
            row[seen_from(head, np.int64(s.beans[b, j]))] = 1.0
    for other in range(SNAKES):
        mate = other // TEAM == i // TEAM
        lead += np.int64(s.score[b, other]) if mate else -np.int64(s.score[b, other])
        if alive(s, b, other):
            body = 1 if other == i else 2 if mate else 3
            cell = np.int64(s.tail[b, other])
            for k in range(np.int64(s.length[b, other])):
                row[CELLS * body + seen_from(head, cell)] = min(k + 1, 32) * (1.0 / 32.0)
                cell = neighbour(cell, np.int64(s.link[b, cell]))
            if other != i:
                row[CELLS * (4 if mate else 5) + seen_from(head, np.int64(s.head[b, other]))] = 1.0
    step, ahead = np.int64(s.step_count[b]) * (1.0 / MAX_STEPS), clipped(lead * 0.05)
    for cell in range(CELLS):
        row[6 * CELLS + cell] = step
        row[7 * CELLS + cell] = ahead


@inlined
def write_row(s, b, i, kind, sets, lanes, numbers, row):
    """Writes the observation `kind` of snake `i` of board `b`; for FEATURES the board was surveyed."""
    if kind == FEATURES:
        write_features(s, b, i, sets, lanes, numbers, row)
        return
    for k in range(row.shape[0]):
        row[k] = 0.0
    if not alive(s, b, i):
        return
    if kind == PLANES:
        write_planes(s, b, i, row)
        return
    write_sixteen(s, b, i, row)
    if kind == FORK:
        write_fork(s, b, i, row)
    else:
        put_heads(s, b, i, row, 16)


@inlined
def write_board(s, b, team, kind, sets, lanes, numbers, out):
    """Writes the three rows of `team` on board `b` to `out` (3, D)."""
    if kind == FEATURES:
        survey(s, b, sets, lanes, numbers)
    for slot in range(TEAM):
        write_row(s, b, TEAM * team + slot, kind, sets, lanes, numbers, out[slot])


# -- loops ------------------------------------------------------------------------------------------------------------


@cache
def cpu_loops() -> tuple[Any, Any]:
    """(serial, parallel): write `out` (n, 3, D) for the boards start.. or, where `listed`, for those in `index`.

    Rows k with due[k] False are left alone where `masked`.
    """
    made_of = stamp(hashing, rules, flood, features)

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
            from . import cuda_observe

            cuda_observe.observe(state, *where, rows)
            return
        serial, parallel = cpu_loops()
        threads = num_threads()
        if threads == 1 or n < SERIAL_BELOW:
            serial(state.arrays, 0, n, *where, *(part[0] for part in scratch(1)), rows)
        else:
            chunks = CHUNKS_PER_THREAD * threads
            parallel(state.arrays, chunks, *where, *scratch(chunks), rows)


OBSERVATIONS = {
    "baseline26": Observation(TensorSpec((TEAM, 26)), 4, False, BASELINE),
    "fork35": Observation(TensorSpec((TEAM, 35)), 4, False, FORK),
    "planes": Observation(TensorSpec((TEAM, NUM_PLANES, ROWS, COLS)), 4, False, PLANES),
    "features": Observation(TensorSpec((TEAM, NUM_FEATURES)), 3, True, FEATURES),
}
