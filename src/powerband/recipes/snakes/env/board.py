"""SnakesState: N games of 3v3 snakes on a torus of 10 rows and 20 columns, as tensors.

A cell is a number ``20 * row + col``. Directions and absolute actions are 0..3 = up, down, left, right. Snakes 0, 1, 2
are team A, snakes 3, 4, 5 team B. A snake is stored as a chain: `link` leads from each of its cells to the next one
towards the head, so a move changes two cells for any length of the snake.
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
    """The tensors of a `SnakesState` as arrays for numba: numpy views on a CPU, device arrays on CUDA.

    `SnakesState` explains the fields.
    """

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
    """State of N games, in tensors that are only written in place. A cell is a number 20 * row + column, 0..199.

    Attributes:
        grid: (N, 200) uint8: 0 free, 1 bean, 2 + i a cell of snake i.
        link: (N, 200) uint8: at a body cell that is not a head, the direction of the next cell towards the head; 4 +
            direction if that cell is two cells away, as after some respawns.
        head: (N, 6) int16: cell of the head. If there was no place for a dead snake, which ends the game, its last
            cell.
        tail: (N, 6) int16: cell of the tail.
        length: (N, 6) int16: number of cells, at least 3.
        direction: (N, 6) int16: direction of the last move, or the initial one: 0..3 = up, down, left, right.
        beans: (N, 5) int16: cells in the order of their appearance, then -1.
        step_count: (N,) int32: moves of this game, 0..199.
        score: (N, 6) int32: sum of the game reward of each snake in this game.
        board_id: (N,) int64: index of the board among those of all ranks. Every random draw depends on it and `tick`.
        tick: (N,) int64: moves since the environment was seeded.
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
        """Creates the state of `num_boards` boards without snakes and beans; `board_id` counts from `first_board`."""
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
        tensors = {
            name: torch.zeros((num_boards, *s), dtype=dtype, device=device) for name, (s, dtype) in shapes.items()
        }
        tensors["board_id"] += torch.arange(first_board, first_board + num_boards, device=device)
        tensors["beans"] -= 1
        return cls(**tensors)

    @property
    def num_boards(self) -> int:
        """Number of boards N."""
        return self.grid.shape[0]

    @cached_property
    def arrays(self) -> BoardArrays:
        """Views of the state tensors as arrays for numba."""
        return BoardArrays(*(device_array(getattr(self, field.name)) for field in fields(self)))

    def state_dict(self) -> dict[str, Tensor]:
        """Returns a copy of every state tensor by its name."""
        return {field.name: getattr(self, field.name).clone() for field in fields(self)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies `state`, a result of `state_dict`, into the tensors.

        Raises:
            ValueError: A tensor is missing in `state` or has another shape.
        """
        for field in fields(self):
            own = getattr(self, field.name)
            if field.name not in state or state[field.name].shape != own.shape:
                found = tuple(state[field.name].shape) if field.name in state else "nothing"
                raise ValueError(
                    f"Expected shape {tuple(own.shape)} for {field.name!r} of the snakes state, found {found}. "
                    "Resume with the same number of boards."
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
    """Sets the board with index `board` of `state` to a given position.

    Args:
        state: State of the boards.
        board: Index of the board.
        bodies: Six lists of at least three neighbouring cells (row, col), head first. The tail may be two cells away
            from its neighbour, as after some respawns.
        beans: Up to five cells (row, col) in the order of their appearance.
        directions: Direction of each snake's last move: 0..3 = up, down, left, right. The rules replace an action in
            the opposite direction.
        step_count: Moves of this game, 0..199.
        scores: Score of each snake, its sum of game rewards; None sets all to zero.

    Raises:
        ValueError: The rules do not allow the position.
    """
    if not 0 <= board < state.num_boards:
        raise ValueError(f"Board {board} does not exist. Pass an index in 0..{state.num_boards - 1}.")
    if len(bodies) != SNAKES or len(directions) != SNAKES or len(scores or [0] * SNAKES) != SNAKES:
        raise ValueError(
            f"bodies has {len(bodies)} entries and directions has {len(directions)}. Pass bodies, directions and "
            f"scores with {SNAKES} entries each, one per snake."
        )
    if len(beans) > BEANS:
        raise ValueError(f"beans has {len(beans)} cells. A board has at most {BEANS} beans.")
    if not 0 <= step_count < 200:
        raise ValueError(f"step_count={step_count} is outside 0..199, the moves of a game that has not ended.")
    if any(direction not in range(4) for direction in directions):
        raise ValueError(f"directions={directions} is invalid. Each direction must be 0..3 (up, down, left, right).")
    grid, link = np.zeros(CELLS, np.uint8), np.zeros(CELLS, np.uint8)
    bean_cells = [_cell(position, "bean") for position in beans]
    for cell in bean_cells:
        if grid[cell] != FREE:
            raise ValueError(f"Two beans are on {divmod(cell, COLS)}. Put each bean on a different cell.")
        grid[cell] = 1
    chains = [[_cell(position, f"snake {i}") for position in body] for i, body in enumerate(bodies)]
    for i, chain in enumerate(chains):
        if len(chain) < START_LENGTH:
            raise ValueError(f"Snake {i} has {len(chain)} cells; the minimum is {START_LENGTH}.")
        for cell in chain:
            if grid[cell] != FREE:
                raise ValueError(
                    f"Snake {i} cannot be on {divmod(cell, COLS)}: the cell is occupied. Use each cell (row, col) once."
                )
            grid[cell] = 2 + i
        for ahead, cell in zip(chain, chain[1:], strict=False):
            steps = range(JUMP + 4 if cell == chain[-1] else JUMP)  # only a tail can be two cells away, see `respawn`
            towards = [direction for direction in steps if neighbour(cell, direction) == ahead]
            if not towards:
                raise ValueError(
                    f"Snake {i}: {divmod(ahead, COLS)} and {divmod(cell, COLS)} are not neighbours on the torus. "
                    "List the cells of the snake in order from its head."
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
    """Returns the position of a board as the keyword arguments of `load_board`.

    A snake that is not on the board has an empty list in ``bodies``.
    """
    row = {field.name: getattr(state, field.name)[board].cpu().numpy() for field in fields(state)}
    bodies = []
    for i in range(SNAKES):
        body: list[tuple[int, int]] = []
        cell = int(row["tail"][i])
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


def _cell(position: tuple[int, int], name: str) -> int:
    row, col = position
    if not (0 <= row < ROWS and 0 <= col < COLS):
        raise ValueError(f"The {name} at {position} is off the board: rows are 0..{ROWS - 1}, columns 0..{COLS - 1}.")
    return int(row) * COLS + int(col)
