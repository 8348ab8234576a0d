"""Rewards: computes the rewards of one move and the results of an ended game, for one board at a time.

Parameter names: `s`, a `BoardArrays`, contains all boards; `b` is the index of a board; `i` is a snake, 0..5.
"""

import math

import numpy as np

from powerband.recipes.snakes.env.rules.game import BEANS, COLS, GAME_OVER, RUNNING, SNAKES, STEP_LIMIT, TEAM, inlined

GAME, MIXED, SHAPED = 0, 1, 2
REWARDS = {"game": GAME, "mixed": MIXED, "shaped": SHAPED}
EPISODE_METRICS = ("score", "opponent_score", "win", "draw", "loss")


@inlined
def team_difference(values, b, team):
    """Returns the sum of `values` (N boards, 6 snakes) over `team` on board `b`, minus the sum over the other team."""
    own, other = 0, 0
    for i in range(TEAM):
        own += values[b, team * TEAM + i]
        other += values[b, (1 - team) * TEAM + i]
    return own - other


@inlined
def bean_distance(s, b, i):
    """Computes the Euclidean distance in cells from the head of snake `i` of board `b` to the nearest bean.

    Distances do not cross the edges of the board. Without a bean, the result is 49. `s`: arrays of all boards.
    """
    row, col = s.head[b, i] // COLS, s.head[b, i] % COLS
    nearest = SNAKES * COLS * COLS
    for j in range(BEANS):
        bean = np.int64(s.beans[b, j])
        if bean >= 0:
            rows, cols = bean // COLS - row, bean % COLS - col
            nearest = min(nearest, rows * rows + cols * cols)
    return math.sqrt(float(nearest))


@inlined
def shaped(s, b, i, gain, outcome):
    """Computes the shaped reward of snake `i` of board `b` after a move.

    It is 10 if the own team leads and -5 if it is behind (50 and -25 at the end of the game). To this, 20 is added if
    the snake became longer. Otherwise the distance to the nearest bean in cells is subtracted, and 10 if the snake
    became shorter, which only a death can cause.

    Args:
        s: Arrays of all boards.
        b: Index of the board.
        i: Index of the snake.
        gain: (N boards, 6): game reward of each snake, the change of its length.
        outcome: RUNNING, STEP_LIMIT or GAME_OVER.

    Source: `get_reward` of the public 3v3 snakes baseline. This code measures Euclidean distances after the move, and
    rewards a bean only if the game reward of the move is positive.
    """
    margin = team_difference(s.score, b, i // TEAM)
    reward = 0.0
    if outcome != RUNNING:
        reward += 50.0 if margin > 0 else (-25.0 if margin < 0 else 0.0)
    else:
        reward += 10.0 if margin > 0 else (-5.0 if margin < 0 else 0.0)
    if gain[b, i] > 0:
        return reward + 20.0
    return reward - bean_distance(s, b, i) - (10.0 if gain[b, i] < 0 else 0.0)


@inlined
def write_row(s, b, team, row, kind, out):
    """Writes the rewards of `team` (0 = A, 1 = B) for the last move on board `b` to row `row` of the arrays in `out`.

    It also writes whether the game ended, and its results if it did. The learner has one row per team that it plays.
    `s`: arrays of all boards, before a new game starts; `kind`: reward GAME, MIXED or SHAPED; `out`: a `MoveArrays`.
    """
    outcome = out.outcome[b]
    for k in range(TEAM):
        i = team * TEAM + k
        if kind == GAME:
            reward = float(out.gain[b, i])
        elif kind == MIXED:
            reward = 0.8 * out.gain[b, i] + 0.1 * team_difference(out.gain, b, team)
        else:
            reward = shaped(s, b, i, out.gain, outcome)
        out.reward[row, k] = reward
    out.truncated[row] = outcome == STEP_LIMIT and kind != SHAPED
    out.terminated[row] = outcome == GAME_OVER or (outcome == STEP_LIMIT and kind == SHAPED)
    if outcome != RUNNING:
        own = 0
        for k in range(TEAM):
            own += s.score[b, team * TEAM + k]
        margin = team_difference(s.score, b, team)
        out.figures[0, row] = own
        out.figures[1, row] = own - margin
        out.figures[2, row] = 1.0 if margin > 0 else 0.0
        out.figures[3, row] = 1.0 if margin == 0 else 0.0
        out.figures[4, row] = 1.0 if margin < 0 else 0.0
