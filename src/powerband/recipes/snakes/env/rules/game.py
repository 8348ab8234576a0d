"""Rules of 3v3 snakes for one board, as scalar functions that numba compiles for CPU threads and for CUDA.

Parameter names: `s` is a `BoardArrays`, the arrays of all boards; `b` is the index of a board; `i` is a snake, 0..5; a
cell is a number ``20 * row + col``. Nothing here allocates. Arithmetic uses int64 except in the hash,
because numba converts a mix of uint64 and int64 to floats.

Random numbers are a function of (seed, board number over all ranks, moves on the board, purpose) only, so the number of
threads, the split over ranks and the device change no bit. The purpose is a slot: 0..5 replacement of a reversing move,
64.. beans, 512.. beans of a new game, 1024.. its snakes; opponents draw from slots 3072..4095.

Source: public rules of the Jidi competition "3v3 snakes".
"""

import numpy as np

from powerband.envs.numba.hashing import inlined, random_bits, random_integer, stream_key

ROWS, COLS, CELLS = 10, 20, 200
SNAKES, TEAM, BEANS, START_LENGTH, MAX_STEPS = 6, 3, 5, 3, 200
FREE, BEAN, SNAKE = 0, 1, 2  # grid codes; a cell of snake i is SNAKE + i
UP, DOWN, LEFT, RIGHT = 0, 1, 2, 3
JUMP = 4  # added to a direction: two cells that way at once
RUNNING, STEP_LIMIT, GAME_OVER = 0, 1, 2
BEAN_SLOT, FIRST_BEAN_SLOT, PLACE_SLOT = 64, 512, 1024
REJECTIONS = 16


# -- geometry ---------------------------------------------------------------------------------------------------------


def _neighbours():
    """Builds the table of neighbours (8 * 256,) uint8.

    The entry ``256 * direction + cell`` is the cell one step from `cell`, or two steps for JUMP + direction.
    """
    row, col = np.divmod(np.arange(CELLS), COLS)
    steps = [(rows * n, cols * n) for n in (1, 2) for rows, cols in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    table = np.zeros((len(steps), 256), np.uint8)
    table[:, :CELLS] = [(row + r) % ROWS * COLS + (col + c) % COLS for r, c in steps]
    return table.reshape(-1)


NEIGHBOURS = _neighbours()


@inlined
def neighbour(cell, direction):
    """Returns the cell one step from `cell` on the torus, or two steps if `direction` is 4..7 instead of 0..3."""
    return np.int64(NEIGHBOURS[np.uint32(256 * direction + cell)])  # a table makes steps 40 % faster than arithmetic


@inlined
def cell_at(cells, b, i):
    """Returns ``cells[b, i]``, a cell of snake `i` on board `b`, as int64.

    `cells`: (N boards, 6) int16, such as the heads of all snakes. Cells are not negative; a conversion to an unsigned
    type lets the compiler use this for faster code.
    """
    return np.int64(np.uint16(cells[b, i]))


@inlined
def absolute_action(direction, turn):
    """Converts the relative action `turn` (0 forward, 1 left, 2 right) to an absolute one, 0..3.

    `direction` is the direction of the snake: 0..3 = up, down, left, right.
    """
    left = 0b00_01_11_10 >> 2 * direction & 3  # from the right: the left turns of up, down, left, right
    return direction if turn == 0 else left ^ (turn >> 1)


@inlined
def birth_direction(head, second):
    """Returns the direction of a new snake with its head on the cell `head` and its next cell on `second`.

    As in the public rules, a snake that crosses an edge of the board gets the opposite direction.
    """
    if head // COLS == second // COLS:
        return RIGHT if head % COLS > second % COLS else LEFT
    return DOWN if head // COLS > second // COLS else UP


@inlined
def put_snake(s, b, i, head, middle, tail, middle_link, tail_link):
    """Places snake `i` with length 3 on three free cells of board `b`.

    `s`: arrays of all boards; `head`, `middle`, `tail`: the cells; `middle_link`, `tail_link`: directions from the
    middle cell and from the tail to the next cell towards the head.
    """
    s.grid[b, head] = SNAKE + i
    s.grid[b, middle] = SNAKE + i
    s.grid[b, tail] = SNAKE + i
    s.link[b, middle] = middle_link
    s.link[b, tail] = tail_link
    s.head[b, i] = head
    s.tail[b, i] = tail
    s.length[b, i] = START_LENGTH
    s.direction[b, i] = birth_direction(head, middle)


# -- one move ---------------------------------------------------------------------------------------------------------


@inlined
def eat(s, b, cell):
    """Removes the bean on `cell` of board `b`; the other beans keep their order. `s`: arrays of all boards."""
    s.grid[b, cell] = FREE
    found = False
    for j in range(BEANS):
        found = found or s.beans[b, j] == cell
        if found:
            s.beans[b, j] = s.beans[b, j + 1] if j + 1 < BEANS else -1


@inlined
def move(s, b, i, action, key, tick, gain):
    """Moves the head of snake `i` on board `b`, and its tail unless it eats. The new head is not on the grid yet.

    Args:
        s: Arrays of all boards.
        b: Index of the board.
        i: Index of the snake.
        action: Direction 0..3 (up, down, left, right); a random direction replaces an action that reverses the snake.
        key: Key of the random stream of the board, see `stream_key`.
        tick: Moves on this board since it was seeded.
        gain: (N boards, 6), written: 1 if the snake eats, otherwise 0.
    """
    other = random_integer(random_bits(key, tick, i), 3)  # always drawn, which costs less than an unpredictable branch
    other += np.int64(other >= action)
    direction = action + (other - action) * np.int64(action == s.direction[b, i] ^ 1)
    head = cell_at(s.head, b, i)
    s.link[b, head] = direction
    head = neighbour(head, direction)
    s.head[b, i] = head
    s.direction[b, i] = direction
    if s.grid[b, head] == BEAN:
        eat(s, b, head)
        s.length[b, i] += 1
        s.score[b, i] += 1
        gain[b, i] = 1
    else:
        tail = cell_at(s.tail, b, i)
        s.grid[b, tail] = FREE
        s.tail[b, i] = neighbour(tail, np.int64(s.link[b, tail]))
        gain[b, i] = 0


@inlined
def collide(s, b):
    """Places the moved heads on the grid of board `b`, and finds collisions. `s`: arrays of all boards.

    Returns:
        The snakes that died, as an integer whose bit i is set for snake i; 0 if none died.
    """
    dead = 0
    for i in range(SNAKES):
        cell = cell_at(s.head, b, i)
        found = np.int64(s.grid[b, cell])
        if found == FREE:
            s.grid[b, cell] = SNAKE + i
        else:
            dead |= 1 << i
            if s.head[b, np.uint32(found - SNAKE)] == cell:  # another head moved here, so both snakes die
                dead |= 1 << (found - SNAKE)
    return dead


@inlined
def clear(s, b, i):
    """Removes the dead snake `i` from the grid of board `b`. `s`: arrays of all boards."""
    cell = cell_at(s.tail, b, i)
    for _ in range(s.length[b, i] - 1):
        s.grid[b, cell] = FREE
        cell = neighbour(cell, np.int64(s.link[b, cell]))
    if s.grid[b, cell] == SNAKE + i:  # otherwise the head is not on the grid
        s.grid[b, cell] = FREE


@inlined
def respawn(s, b, i, start):
    """Places snake `i` on board `b`, on the first three cells of a breadth-first search over free cells.

    `s`: arrays of all boards; `start`: first cell at which the search may begin.

    The root of the search is the first free cell from which three free cells can be reached. No queue is necessary: the
    three cells are the root and two of its free neighbours, or the root, its only free neighbour, and one free
    neighbour of the latter. Failed searches exhaust a region of one or two cells, which no later search reaches, so
    their cells need no marks.

    Returns:
        The root, from which the search for the next snake continues; 200 if the board has no place for the snake.
    """
    for root in range(start, CELLS):
        if s.grid[b, root] != FREE:
            continue
        first, second, to_first, to_second = -1, -1, 0, 0
        for direction in (RIGHT, DOWN, UP, LEFT):
            cell = neighbour(root, direction)
            if second < 0 and s.grid[b, cell] == FREE:
                if first < 0:
                    first, to_first = cell, direction
                else:
                    second, to_second = cell, direction
        if second >= 0:
            if (to_first ^ to_second) & 2:  # at a corner, the root becomes the middle of the snake
                put_snake(s, b, i, first, root, second, to_first, to_second ^ 1)
            else:  # on a line, the rules make the middle cell the head, so the tail is two cells away
                put_snake(s, b, i, root, first, second, to_first ^ 1, to_first + JUMP)
            return root
        if first >= 0:
            for direction in (RIGHT, DOWN, UP, LEFT):
                cell = neighbour(first, direction)
                if cell != root and s.grid[b, cell] == FREE:
                    put_snake(s, b, i, root, first, cell, to_first ^ 1, direction ^ 1)
                    return root
    return CELLS


@inlined
def count_free(s, b):
    """Counts the cells of board `b` without a snake (int64); all six snakes must be on the board.

    `s`: arrays of all boards.
    """
    free = CELLS
    for i in range(SNAKES):
        free -= np.int64(s.length[b, i])
    return free


@inlined
def refill(s, b, key, first_slot):
    """Adds beans to board `b`, on uniformly drawn free cells, until it has five beans or no free cell.

    `s`: arrays of all boards; `key`: key of the random stream of the board, see `stream_key`; `first_slot`: number of
    the first random draw. A slot is a number that distinguishes the random draws of one move.
    """
    free = count_free(s, b)
    for j in range(BEANS):
        if s.beans[b, j] >= 0:
            free -= 1
            continue
        if free <= 0:
            return
        slot = first_slot + j * (REJECTIONS + 1)
        cell = random_integer(random_bits(key, s.tick[b], slot), CELLS)
        tries = 1
        while s.grid[b, cell] != FREE and tries < REJECTIONS:
            cell = random_integer(random_bits(key, s.tick[b], slot + tries), CELLS)
            tries += 1
        if s.grid[b, cell] != FREE:  # on a crowded board, count the free cells instead
            skip = random_integer(random_bits(key, s.tick[b], slot + tries), free)
            cell = 0
            while s.grid[b, cell] != FREE or skip > 0:
                skip -= 1 if s.grid[b, cell] == FREE else 0
                cell += 1
        s.grid[b, cell] = BEAN
        s.beans[b, j] = cell
        free -= 1


@inlined
def step_board(s, b, actions, seed, gain):
    """Executes one move of the game on board `b`.

    Args:
        s: Arrays of all boards.
        b: Index of the board.
        actions: (N boards, 6): directions of the six snakes, 0..3 = up, down, left, right.
        seed: Seed as uint64.
        gain: Output (N boards, 6): the game reward of each snake, which is the change of its length.

    Returns:
        RUNNING, STEP_LIMIT after 200 moves, or GAME_OVER if a snake found no place or the board is full.
    """
    key = stream_key(seed, s.board_id[b])
    tick = np.int64(s.tick[b])
    for i in range(SNAKES):
        move(s, b, i, np.int64(actions[b, i]), key, tick, gain)
    dead = collide(s, b)
    root = 0
    if dead:
        for i in range(SNAKES):
            if dead >> i & 1:
                clear(s, b, i)
        for i in range(SNAKES):
            if dead >> i & 1:
                lost = START_LENGTH - s.length[b, i]
                s.length[b, i] = START_LENGTH
                s.score[b, i] += lost
                gain[b, i] += lost
                if root < CELLS:
                    root = respawn(s, b, i, root)
    full = False
    if root < CELLS and s.beans[b, BEANS - 1] < 0:  # a bean was eaten
        refill(s, b, key, BEAN_SLOT)
        full = count_free(s, b) < BEANS
    s.tick[b] = tick + 1
    step_count = s.step_count[b] + 1
    s.step_count[b] = step_count
    if root == CELLS or full:
        return GAME_OVER
    return STEP_LIMIT if step_count >= MAX_STEPS else RUNNING


@inlined
def reset_board(s, b, seed):
    """Starts a new game on board `b`: places six snakes of three cells, then five beans, at random.

    A snake is drawn again until its three cells are free. `s`: arrays of all boards; `seed`: seed as uint64.
    """
    key = stream_key(seed, s.board_id[b])
    for cell in range(CELLS):
        s.grid[b, cell] = FREE
        s.link[b, cell] = UP
    slot = PLACE_SLOT
    for i in range(SNAKES):
        s.score[b, i] = 0
        placed = False
        while not placed:
            bits = random_bits(key, s.tick[b], slot)
            slot += 1
            head = random_integer(bits, CELLS)
            to_middle, to_tail = np.int64(bits & np.uint64(3)), np.int64(bits >> np.uint64(2) & np.uint64(3))
            middle = neighbour(head, to_middle)
            tail = neighbour(middle, to_tail)
            if tail != head and s.grid[b, head] + s.grid[b, middle] + s.grid[b, tail] == FREE:
                put_snake(s, b, i, head, middle, tail, to_middle ^ 1, to_tail ^ 1)
                placed = True
    for j in range(BEANS):
        s.beans[b, j] = -1
    refill(s, b, key, FIRST_BEAN_SLOT)
    s.step_count[b] = 0
