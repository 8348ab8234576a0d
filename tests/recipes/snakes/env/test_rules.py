"""Board rules equal those of the engine in `reference.py`, in random play and in positions for single rules."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from powerband.recipes.snakes.env.board import SnakesState, dump_board, load_board
from powerband.recipes.snakes.env.kernels import MoveBuffers, move_boards, restart_all, restart_boards
from powerband.recipes.snakes.env.rules.game import GAME_OVER, RUNNING, STEP_LIMIT
from recipes.snakes.env.reference import OPPOSITE, Draws, Snakes, neighbour

UP, DOWN, LEFT, RIGHT = range(4)


@dataclass
class Game:
    """Boards of the engine, each with its reference game."""

    num_boards: int = 1
    seed: int = 7
    first_board: int = 0

    def __post_init__(self):
        self.state = SnakesState.empty(self.num_boards, first_board=self.first_board)
        self.moves = MoveBuffers(self.num_boards, 2 * self.num_boards, torch.device("cpu"))
        self.draws = [Draws(self.seed, self.first_board + b) for b in range(self.num_boards)]
        restart_all(self.state, self.moves, seed=self.seed)
        self.plain = [self.plain_game(b) for b in range(self.num_boards)]

    def plain_game(self, b: int) -> Snakes:
        """Creates the reference game in the position of board `b`."""
        position = dump_board(self.state, b)
        chance = {"replace_turn": self.draws[b].replace_turn, "place_bean": self.draws[b].place_bean}
        return Snakes(**position, **chance)

    def load(self, bodies, beans, directions, b=0, **rest) -> "Game":
        """Sets board `b` in both engines."""
        load_board(self.state, b, bodies=bodies, beans=beans, directions=directions, **rest)
        self.plain[b] = self.plain_game(b)
        return self

    def step(self, actions: list[list[int]]) -> None:
        """Steps both engines and compares positions, rewards and ends."""
        both_teams = torch.tensor(actions).view(self.num_boards, 2, 3).transpose(0, 1).reshape(-1, 3)
        self.moves.action.copy_(both_teams)
        move_boards(self.state, self.moves, mirrored=self.num_boards, relative=False, seed=self.seed, kind=0, threads=1)
        for b, plain in enumerate(self.plain):
            gains = plain.step(list(actions[b]))
            self.draws[b].tick += 1
            after = dump_board(self.state, b)
            assert self.moves.gain[b].tolist() == gains
            assert after["bodies"] == plain.bodies
            assert after["beans"] == plain.beans
            assert after["directions"] == plain.directions
            assert after["scores"] == plain.scores
            assert after["step_count"] == plain.step_count
            outcome = GAME_OVER if plain.over else STEP_LIMIT if plain.limit else RUNNING
            assert self.moves.outcome[b] == outcome
            check_consistent(self.state, b)

    def restart_ended(self) -> int:
        """Restarts the games that ended, in both engines."""
        restart_boards(self.state, self.moves, seed=self.seed)
        ended = self.moves.outcome.nonzero().flatten().tolist()
        for b in ended:
            self.plain[b] = self.plain_game(b)
        return len(ended)


def check_consistent(state: SnakesState, b: int) -> None:
    """Checks that the grid agrees with the chains and the list of beans."""
    grid = np.zeros(200, np.uint8)
    position = dump_board(state, b)
    for row, col in position["beans"]:
        grid[20 * row + col] = 1
    for i, body in enumerate(position["bodies"]):
        for row, col in body:
            grid[20 * row + col] = 2 + i
    assert (state.grid[b].numpy() == grid).all()
    assert [len(body) for body in position["bodies"] if body] == [
        int(n) for n, body in zip(state.length[b], position["bodies"], strict=True) if body
    ]


def careful(game: Snakes, rng: random.Random) -> list[int]:
    """Chooses actions that mostly survive and eat beans, so that snakes grow and boards fill."""
    taken = {cell for body in game.bodies for cell in body}
    actions = []
    for i, body in enumerate(game.bodies):
        options = [d for d in range(4) if d != OPPOSITE[game.directions[i]]]
        open_ones = [d for d in options if neighbour(body[0], d) not in taken]
        beans = [d for d in open_ones if neighbour(body[0], d) in game.beans]
        actions.append(rng.choice(beans or open_ones or options) if rng.random() < 0.97 else rng.randrange(4))
    return actions


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_ten_thousand_random_moves(seed):
    rng = random.Random(seed)
    game = Game(num_boards=5, seed=seed, first_board=1000)
    ended = deaths = 0
    for _ in range(1000):
        game.step([[rng.randrange(4) for _ in range(6)] for _ in range(5)])
        deaths += int((game.moves.gain < 0).sum())
        ended += game.restart_ended()
    assert ended == 25
    assert deaths > 200


def test_long_snakes_follow_the_reference():
    rng = random.Random(3)
    game = Game(num_boards=4)
    longest = 0
    for _ in range(1200):
        game.step([careful(plain, rng) for plain in game.plain])
        longest = max(longest, int(game.state.length.max()))
        game.restart_ended()
    assert longest >= 20


def test_crowded_boards_follow_the_reference():
    """With 150 to 195 occupied cells, searches fail, and bean cells are drawn by index."""
    rng = random.Random(5)
    game = Game()
    for round_ in range(150):
        game.load(**crowded(rng, cells=rng.randrange(150, 196)), step_count=rng.choice([0, 100, 190]))
        for _ in range(12):
            game.step([careful(game.plain[0], rng) if round_ % 2 else [rng.randrange(4) for _ in range(6)]])
            if game.moves.outcome[0]:
                break


def crowded(rng: random.Random, cells: int) -> dict:
    """Creates a position of six snakes with about `cells` cells, grown at their tails by random walks."""
    starts = [(1, 1), (1, 10), (5, 4), (5, 15), (8, 1), (8, 10)]
    bodies = [[(r, c), (r, c + 1), (r, c + 2)] for r, c in starts]
    taken = {cell for body in bodies for cell in body}
    stuck = 0
    while len(taken) < cells and stuck < 200:
        body = rng.choice(bodies)
        cell = neighbour(body[-1], rng.randrange(4))
        stuck += 1
        if cell not in taken:
            body.append(cell)
            taken.add(cell)
            stuck = 0
    free = [(r, c) for r in range(10) for c in range(20) if (r, c) not in taken]
    return {"bodies": bodies, "beans": rng.sample(free, min(5, len(free))), "directions": [LEFT] * 6}


FAR = [[(9, 0), (9, 1), (9, 2)], [(9, 4), (9, 5), (9, 6)], [(9, 8), (9, 9), (9, 10)], [(9, 12), (9, 13), (9, 14)]]
FAR_BEANS = [(7, 0), (7, 2), (7, 4), (7, 6), (7, 8)]


def duel(first, second, directions, actions, beans=FAR_BEANS):
    """Moves snakes 0 and 1, without contact to the others; returns the game after the move."""
    game = Game().load([first, second, *FAR], beans, [*directions, LEFT, LEFT, LEFT, LEFT])
    game.step([[*actions, UP, UP, UP, UP]])
    return game


def test_two_heads_on_one_cell_both_die():
    game = duel([(3, 3), (3, 2), (3, 1)], [(3, 5), (3, 6), (3, 7), (3, 8)], [RIGHT, LEFT], [RIGHT, LEFT])
    assert game.moves.gain[0, :2].tolist() == [0, -1]


def test_two_heads_on_one_bean_first_eats_both_die():
    beans = [*FAR_BEANS[:4], (3, 4)]
    game = duel([(3, 3), (3, 2), (3, 1)], [(3, 5), (3, 6), (3, 7), (3, 8)], [RIGHT, LEFT], [RIGHT, LEFT], beans)
    assert game.moves.gain[0, :2].tolist() == [0, -1]
    assert game.plain[0].beans[:4] == FAR_BEANS[:4]


def test_heads_that_swap_cells_both_die():
    game = duel([(3, 3), (3, 2), (3, 1), (3, 0)], [(3, 4), (3, 5), (3, 6), (3, 7)], [RIGHT, LEFT], [RIGHT, LEFT])
    assert game.moves.gain[0, :2].tolist() == [-1, -1]


def test_a_tail_that_leaves_is_no_obstacle_and_one_that_eats_is():
    body = [(4, 4), (4, 3), (3, 3), (3, 4)]  # the head is below the tail
    other = [(1, 10), (1, 11), (1, 12)]
    assert duel(body, other, [RIGHT, LEFT], [UP, UP]).moves.gain[0, 0] == 0
    chaser = [(3, 5), (3, 6), (3, 7), (3, 8)]
    stays = duel(body, chaser, [RIGHT, LEFT], [RIGHT, LEFT], beans=[*FAR_BEANS[:4], (4, 5)])
    assert stays.moves.gain[0, :2].tolist() == [1, -1]
    leaves = duel(body, chaser, [RIGHT, LEFT], [RIGHT, LEFT])
    assert leaves.moves.gain[0, :2].tolist() == [0, 0]


def test_own_body_kills():
    body = [(4, 4), (4, 3), (3, 3), (3, 4), (3, 5)]
    assert duel(body, [(1, 10), (1, 11), (1, 12)], [RIGHT, LEFT], [UP, UP]).moves.gain[0, 0] == -2


def test_reversing_is_replaced_by_each_other_direction_alike():
    counts = [0] * 4
    for seed in range(600):
        game = Game(seed=seed).load(
            [[(3, 3), (3, 2), (3, 1)], [(1, 10), (1, 11), (1, 12)], *FAR], FAR_BEANS, [3] + [2] * 5
        )
        game.step([[LEFT, UP, UP, UP, UP, UP]])
        counts[game.plain[0].directions[0]] += 1
    assert counts[LEFT] == 0
    assert min(counts[UP], counts[DOWN], counts[RIGHT]) > 150


def test_respawn_swaps_a_corner_and_keeps_a_line():
    """The first free cell becomes the middle between its right and lower neighbours; on a line it is the head."""
    corner = Game().load(
        [[(5, 5), (5, 6), (5, 7)], [(5, 4), (6, 4), (6, 3), (6, 2)], *FAR], FAR_BEANS, [LEFT, UP] + [LEFT] * 4
    )
    corner.step([[LEFT, UP, UP, UP, UP, UP]])
    assert corner.plain[0].bodies[0] == [(0, 1), (0, 0), (1, 0)]
    assert corner.plain[0].directions[0] == RIGHT
    blocked = [[(0, 1), (0, 2), (0, 3)], [(5, 4), (6, 4), (6, 3), (6, 2)], [(5, 5), (5, 6), (5, 7)]]
    others = [[(8, 8), (8, 9), (8, 10)], [(8, 12), (8, 13), (8, 14)], [(3, 8), (3, 9), (3, 10)]]
    line = Game().load(blocked + others, FAR_BEANS, [DOWN, UP, LEFT, LEFT, LEFT, LEFT])
    line.step([[DOWN, UP, LEFT, UP, UP, UP]])  # snake 2 runs into snake 1; (0, 1) is body of snake 0
    assert line.plain[0].bodies[2] == [(0, 0), (1, 0), (9, 0)]
    assert line.plain[0].directions[2] == UP
    line.load(**dump_board(line.state, 0))
    for turn in (LEFT, UP):  # the tail jumps over the head's first cell when it is popped
        line.step([[DOWN, UP, turn, UP, UP, UP]])


def test_a_search_that_finds_too_little_is_passed_over():
    """(0, 0) is enclosed; the search continues after it."""
    wall = [[(9, 1), (9, 0), (9, 19), (0, 19), (1, 19), (1, 0), (1, 1), (1, 2), (0, 2), (9, 2), (9, 3)]]
    rest = [[(5, 5), (5, 6), (5, 7)], [(5, 4), (6, 4), (6, 3), (6, 2)]]
    others = [[(7, 8), (7, 9), (7, 10)], [(7, 12), (7, 13), (7, 14)], [(3, 8), (3, 9), (3, 10)]]
    game = Game().load(
        wall + rest + others, [(4, 0), (4, 2), (4, 4), (4, 6), (4, 8)], [RIGHT, LEFT, UP, LEFT, LEFT, LEFT]
    )
    game.step([[DOWN, LEFT, UP, UP, UP, UP]])
    assert game.plain[0].bodies[1][1] == (0, 3)


def full_board(gap: int) -> Game:
    """Fills 195 cells with snakes, head to tail; `gap` free cells are ahead of snake 2, beans ahead of snake 3."""
    cycle = [(r, c if r % 2 == 0 else 19 - c) for r in range(10) for c in range(20)]
    edges = [(0, 40), (40, 65), (65, 68), (68 + gap, 120), (125 - gap, 161), (161, 200)]
    bodies = [cycle[start:stop][::-1] for start, stop in edges]
    return Game().load(bodies, cycle[120 : 125 - gap], [LEFT, LEFT, LEFT, LEFT, DOWN, LEFT])


def test_the_game_ends_when_the_board_is_full():
    game = full_board(gap=1)
    game.step([[DOWN, LEFT, LEFT, DOWN, RIGHT, DOWN]])
    assert game.moves.outcome[0] == GAME_OVER
    assert sum(map(len, game.plain[0].bodies)) == 196


def test_the_game_ends_when_a_snake_finds_no_place():
    game = full_board(gap=0)
    game.step(
        [[DOWN, LEFT, UP, DOWN, RIGHT, DOWN]]
    )  # snake 2 leaves only two free cells; a new head occupies its third cell
    assert game.moves.outcome[0] == GAME_OVER
    assert game.plain[0].bodies[2] == []
    assert game.restart_ended() == 1
    check_consistent(game.state, 0)


def test_bean_cells_are_uniform_over_free_cells():
    counts = np.zeros(200)
    state, moves = SnakesState.empty(20000), MoveBuffers(20000, 20000, torch.device("cpu"))
    restart_all(state, moves, seed=1)
    for cell in state.beans[:, 4].tolist():
        counts[cell] += 1
    assert abs(counts - 100).max() < 55
    heads = np.bincount(state.head[:, 0].numpy(), minlength=200)
    assert abs(heads - 100).max() < 55


def test_invalid_positions_are_refused():
    state = SnakesState.empty(1)
    good = {"bodies": [[(r, 0), (r, 1), (r, 2)] for r in range(6)], "beans": [(9, 9)], "directions": [LEFT] * 6}
    load_board(state, 0, **good)
    wrong = {
        "does not exist": (1, {}),
        "six|6 entries": (0, {"directions": [LEFT]}),
        "at most 5": (0, {"beans": [(9, c) for c in range(6)]}),
        "Two beans": (0, {"beans": [(9, 9), (9, 9)]}),
        "the cell is occupied": (0, {"beans": [(0, 0)]}),
        "off the board": (0, {"beans": [(10, 0)]}),
        "0..3": (0, {"directions": [4] * 6}),
        "0..199": (0, {"step_count": 200}),
        "the minimum is 3": (0, {"bodies": [[(0, 0), (0, 1)], *good["bodies"][1:]]}),
        "not neighbours": (0, {"bodies": [[(0, 0), (0, 1), (0, 4)], *good["bodies"][1:]]}),
    }
    for message, (board, change) in wrong.items():
        with pytest.raises(ValueError, match=message):
            load_board(state, board, **{**good, **change})
