"""The boards of the snakes environment as tensors: N games of 3v3 snakes on a torus of 10 rows and 20 columns.

A cell is a number ``20 * row + col``. Directions and absolute actions are 0..3 = up, down, left, right. Snakes 0, 1, 2
are team A, snakes 3, 4, 5 team B. A snake is stored as a chain: `link` leads from each of its cells to the next one
towards the head, so a move touches two cells however long the snake is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from powerband.envs.numba.arrays import device_array
from powerband.recipes.snakes.env.rules.game import (
    BEANS,
    CELLS,
    COLS,
    FREE,
    JUMP,
    ROWS,
    SNAKES,
    START_LENGTH,
    neighbour,
)


class BoardArrays(NamedTuple):
    """The tensors of `SnakesState` as arrays that numba reads: numpy views on CPU, device arrays on CUDA."""

    grid: Any
    link: Any
    head: Any
    tail: Any
    length: Any
    direction: Any
    beans: Any
    step_count: Any
    score: Any
    board_id: Any
    tick: Any


@dataclass(frozen=True)
class SnakesState:
    """Everything that N games are, in tensors that are only ever written in place.

    Attributes:
        grid: (N, 200) uint8: 0 free, 1 bean, 2 + i a cell of snake i.
        link: (N, 200) uint8: at a body cell that is not a head, the direction towards the next cell nearer the head;
            JUMP + direction where that one is two cells away, see `rules.respawn`.
        head: (N, 6) int16: cell of the head; of a snake that found no place (which ends the game), its last cell.
        tail: (N, 6) int16: cell of the tail.
        length: (N, 6) int16: number of cells, at least 3.
        direction: (N, 6) int16: direction of the last move, or the one given at birth.
        beans: (N, 5) int16: cells in the order they appeared, -1 behind the last one.
        step_count: (N,) int32: moves made in this game, 0..199.
        score: (N, 6) int32: sum of the game reward of each snake in this game.
        board_id: (N,) int64: number of the board over all ranks; with `tick` it keys every random draw.
        tick: (N,) int64: moves made since the environment was seeded.
    """

    grid: Tensor
    link: Tensor
    head: Tensor
    tail: Tensor
    length: Tensor
    direction: Tensor
    beans: Tensor
    step_count: Tensor
    score: Tensor
    board_id: Tensor
    tick: Tensor

    @classmethod
    def empty(cls, num_boards: int, *, first_board: int = 0, device: torch.device | str = "cpu") -> SnakesState:
        """Boards without snakes, numbered from `first_board`."""
        shapes = {
            "grid": ((CELLS,), torch.uint8),
            "link": ((CELLS,), torch.uint8),
            "head": ((SNAKES,), torch.int16),
            "tail": ((SNAKES,), torch.int16),
            "length": ((SNAKES,), torch.int16),
            "direction": ((SNAKES,), torch.int16),
            "beans": ((BEANS,), torch.int16),
            "step_count": ((), torch.int32),
            "score": ((SNAKES,), torch.int32),
            "board_id": ((), torch.int64),
            "tick": ((), torch.int64),
        }
        made = {name: torch.zeros((num_boards, *s), dtype=dtype, device=device) for name, (s, dtype) in shapes.items()}
        made["board_id"] += torch.arange(first_board, first_board + num_boards, device=device)
        made["beans"] -= 1
        return cls(**made)

    @property
    def num_boards(self) -> int:
        """N."""
        return self.grid.shape[0]

    @cached_property
    def arrays(self) -> BoardArrays:
        """The same memory as arrays for numba."""
        return BoardArrays(*(device_array(getattr(self, field.name)) for field in fields(self)))

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all tensors."""
        return {field.name: getattr(self, field.name).clone() for field in fields(self)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies `state` into the tensors.

        Raises:
            ValueError: A tensor is missing, or of another shape.
        """
        for field in fields(self):
            own = getattr(self, field.name)
            if field.name not in state or state[field.name].shape != own.shape:
                found = tuple(state[field.name].shape) if field.name in state else "nothing"
                raise ValueError(
                    f"snakes state {field.name!r}: expected shape {tuple(own.shape)}, found {found}; "
                    "resume with the same number of boards"
                )
            own.copy_(state[field.name])


def load_board(
    state: SnakesState,
    board: int,
    *,
    bodies: list[list[tuple[int, int]]],
    beans: list[tuple[int, int]],
    directions: list[int],
    step_count: int = 0,
    scores: list[int] | None = None,
) -> None:
    """Sets board `board` of `state` to a given position.

    Args:
        state: The boards.
        board: Index inside `state`.
        bodies: Six lists of (row, col), head first, neighbours on the torus, at least three cells each. The last one
            may be two cells from the one before it, as some snakes are born.
        beans: Up to five (row, col), in the order in which they appeared.
        directions: Six directions 0..3; they alone decide which action counts as reversing.
        step_count: Moves already made, 0..199.
        scores: Return so far of each snake; zeros by default.

    Raises:
        ValueError: The position is not one that the rules allow.
    """
    if not 0 <= board < state.num_boards:
        raise ValueError(f"board {board} does not exist: give 0..{state.num_boards - 1}")
    if len(bodies) != SNAKES or len(directions) != SNAKES or len(scores or [0] * SNAKES) != SNAKES:
        raise ValueError(f"bodies, directions and scores need {SNAKES} entries, one for each snake")
    if len(beans) > BEANS:
        raise ValueError(f"{len(beans)} beans given, the board has at most {BEANS}")
    if not 0 <= step_count < 200:
        raise ValueError(f"step_count {step_count} is outside 0..199")
    if any(direction not in range(4) for direction in directions):
        raise ValueError(f"directions {directions}: each must be 0..3 (up, down, left, right)")
    grid, link = np.zeros(CELLS, np.uint8), np.zeros(CELLS, np.uint8)
    bean_cells = [_cell(position, "bean") for position in beans]
    for cell in bean_cells:
        if grid[cell] != FREE:
            raise ValueError(f"two beans on {divmod(cell, COLS)}: give each a cell of its own")
        grid[cell] = 1
    chains = [[_cell(position, f"snake {i}") for position in body] for i, body in enumerate(bodies)]
    for i, chain in enumerate(chains):
        if len(chain) < START_LENGTH:
            raise ValueError(f"snake {i} has {len(chain)} cells, the least is {START_LENGTH}")
        for cell in chain:
            if grid[cell] != FREE:
                raise ValueError(f"snake {i} at {divmod(cell, COLS)}: the cell is taken, give each cell once")
            grid[cell] = 2 + i
        for ahead, cell in zip(chain, chain[1:], strict=False):
            steps = range(JUMP + 4 if cell == chain[-1] else JUMP)  # only a tail can be two cells away, see `respawn`
            towards = [direction for direction in steps if neighbour(cell, direction) == ahead]
            if not towards:
                raise ValueError(
                    f"snake {i}: {divmod(ahead, COLS)} and {divmod(cell, COLS)} are no neighbours on the torus; "
                    "list its cells one by one from the head"
                )
            link[cell] = towards[0]
    rows = {
        "grid": grid,
        "link": link,
        "head": [chain[0] for chain in chains],
        "tail": [chain[-1] for chain in chains],
        "length": [len(chain) for chain in chains],
        "direction": directions,
        "beans": bean_cells + [-1] * (BEANS - len(bean_cells)),
        "step_count": step_count,
        "score": scores or [0] * SNAKES,
    }
    for name, value in rows.items():
        tensor = getattr(state, name)
        tensor[board] = torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)


def dump_board(state: SnakesState, board: int) -> dict[str, Any]:
    """Board `board` of `state` as the arguments of `load_board`; a snake without a place on the board is ``[]``."""
    row = {field.name: getattr(state, field.name)[board].cpu().numpy() for field in fields(state)}
    bodies = []
    for i in range(SNAKES):
        body, cell = [], int(row["tail"][i])
        if row["grid"][row["head"][i]] == 2 + i:
            for _ in range(int(row["length"][i])):
                body.insert(0, divmod(cell, COLS))
                cell = int(neighbour(cell, int(row["link"][cell])))
        bodies.append(body)
    return {
        "bodies": bodies,
        "beans": [divmod(int(cell), COLS) for cell in row["beans"] if cell >= 0],
        "directions": row["direction"].tolist(),
        "step_count": int(row["step_count"]),
        "scores": row["score"].tolist(),
    }


def _cell(position: tuple[int, int], whose: str) -> int:
    row, col = position
    if not (0 <= row < ROWS and 0 <= col < COLS):
        raise ValueError(f"{whose} at {position} is off the board: rows are 0..{ROWS - 1}, columns 0..{COLS - 1}")
    return int(row) * COLS + int(col)
