"""Reference engine of 3v3 snakes in plain Python, with lists of cells and loops.

It shares no code and no representation with the environment. Two callables supply all random choices, so that a test
can reproduce those of the environment. The hash of the environment is implemented again, with Python integers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

ROWS, COLS = 10, 20
OFFSETS = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}  # up, down, left, right
OPPOSITE = {0: 1, 1: 0, 2: 3, 3: 2}

Cell = tuple[int, int]


def neighbour(cell: Cell, direction: int) -> Cell:
    """Returns the neighbour of `cell` on the torus."""
    rows, cols = OFFSETS[direction]
    return (cell[0] + rows) % ROWS, (cell[1] + cols) % COLS


@dataclass
class Snakes:
    """One game.

    Attributes:
        bodies: Six lists of (row, col), head first; empty for a snake that found no place.
        beans: cells (row, col) in the order of their appearance.
        directions: Six directions 0..3.
        replace_turn: Called with (snake, the three allowed directions in ascending order).
        place_bean: Called with (index of the bean, cells that are taken).
    """

    bodies: list[list[Cell]]
    beans: list[Cell]
    directions: list[int]
    replace_turn: Callable[[int, list[int]], int]
    place_bean: Callable[[int, set[Cell]], Cell]
    step_count: int = 0
    scores: list[int] = field(default_factory=lambda: [0] * 6)
    over: bool = False
    limit: bool = False

    def step(self, actions: list[int]) -> list[int]:
        """Makes one move; returns the game reward of each snake."""
        ate = [self.move(i, actions[i]) for i in range(6)]
        dead = self.find_dead()
        rewards = []
        for i in range(6):
            reward = 1 if ate[i] else 0
            if i in dead:
                reward = 3 - len(self.bodies[i]) + (1 if ate[i] else 0)
            rewards.append(reward)
        self.respawn(dead)
        if not self.over:
            self.refill()
        self.step_count += 1
        for i in range(6):
            self.scores[i] += rewards[i]
        if 5 + sum(len(body) for body in self.bodies) > ROWS * COLS:
            self.over = True
        self.limit = self.step_count == 200
        return rewards

    def move(self, i: int, action: int) -> bool:
        """Moves snake `i`; True if it ate."""
        if action == OPPOSITE[self.directions[i]]:
            action = self.replace_turn(i, [d for d in range(4) if d != action])
        self.directions[i] = action
        head = neighbour(self.bodies[i][0], action)
        self.bodies[i].insert(0, head)
        if head in self.beans:
            self.beans.remove(head)
            return True
        self.bodies[i].pop()
        return False

    def find_dead(self) -> set[int]:
        """Snakes whose head is on a cell that any other part of any snake occupies."""
        occupied: dict[Cell, int] = {}
        for body in self.bodies:
            for cell in body:
                occupied[cell] = occupied.get(cell, 0) + 1
        return {i for i, body in enumerate(self.bodies) if occupied[body[0]] > 1}

    def taken(self) -> set[Cell]:
        """Cells with a snake or a bean."""
        return {cell for body in self.bodies for cell in body} | set(self.beans)

    def respawn(self, dead: set[int]) -> None:
        """Removes the dead snakes, then places each on three cells."""
        for i in dead:
            self.bodies[i] = []
        excluded: set[Cell] = set()
        for i in sorted(dead):
            cells = self.find_three(excluded)
            if cells is None:
                self.over = True
                return
            c0, c1, c2 = cells
            if c0 in ((c1[0], c2[1]), (c2[0], c1[1])):
                c0, c1 = c1, c0
            self.bodies[i] = [c0, c1, c2]
            if c0[0] == c1[0]:
                self.directions[i] = 3 if c0[1] > c1[1] else 2
            else:
                self.directions[i] = 1 if c0[0] > c1[0] else 0

    def find_three(self, excluded: set[Cell]) -> list[Cell] | None:
        """The first three cells of a breadth-first search; adds the cells of failed searches to `excluded`."""
        taken = self.taken()
        for row in range(ROWS):
            for col in range(COLS):
                if (row, col) in taken or (row, col) in excluded:
                    continue
                order = [(row, col)]
                queue = deque(order)
                while queue and len(order) < 3:
                    cell = queue.popleft()
                    for direction in (3, 1, 0, 2):
                        near = neighbour(cell, direction)
                        if near not in taken and near not in excluded and near not in order:
                            order.append(near)
                            queue.append(near)
                if len(order) >= 3:
                    return order[:3]
                excluded.update(order)
        return None

    def refill(self) -> None:
        """Puts beans on free cells until there are five."""
        while len(self.beans) < 5:
            taken = self.taken()
            if len(taken) == ROWS * COLS:
                return
            self.beans.append(self.place_bean(len(self.beans), taken))


class Draws:
    """Random choices of the environment for one board, from the definition of its hash.

    Attributes:
        seed: Seed, 0..2**64 - 1.
        board_id: Number of the board over all ranks.
        tick: Moves on the board, counted by the test.
    """

    def __init__(self, seed: int, board_id: int, tick: int = 0):
        self.key = mix64(mix64(seed + 0x9E3779B97F4A7C15) ^ board_id)
        self.tick = tick

    def below(self, slot: int, n: int) -> int:
        """Draws an integer in 0..n-1 for a purpose."""
        bits = mix64(self.key + (self.tick * 4096 + slot + 1) * 0x9E3779B97F4A7C15)
        return ((bits >> 32) * n) >> 32

    def replace_turn(self, snake: int, allowed: list[int]) -> int:
        """Draws one of three directions for a snake that tried to reverse."""
        return allowed[self.below(snake, 3)]

    def place_bean(self, index: int, taken: set[Cell]) -> Cell:
        """Draws a free cell: the first free one of sixteen draws, otherwise an index among the free cells."""
        slot = 64 + 17 * index
        for n in range(16):
            cell = divmod(self.below(slot + n, ROWS * COLS), COLS)
            if cell not in taken:
                return cell
        free = [(row, col) for row in range(ROWS) for col in range(COLS) if (row, col) not in taken]
        return free[self.below(slot + 16, len(free))]


def mix64(z: int) -> int:
    """Computes the finaliser of splitmix64."""
    z %= 1 << 64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return z ^ (z >> 31)
