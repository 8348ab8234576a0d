"""What a learner is paid for one move, and the figures of a game that ended: scalar functions for one board."""

import math

import numpy as np

from powerband.recipes.snakes.env.rules.game import BEANS, COLS, GAME_OVER, RUNNING, SNAKES, STEP_LIMIT, TEAM, inlined

GAME, MIXED, SHAPED = 0, 1, 2
REWARDS = {"game": GAME, "mixed": MIXED, "shaped": SHAPED}
EPISODE_METRICS = ("score", "opponent_score", "win", "draw", "loss")


@inlined
def team_difference(values, b, team):
    """Sum of `values` (N, 6) over the snakes of `team` minus the sum over the other team's, on board `b`."""
    own, other = 0, 0
    for i in range(TEAM):
        own += values[b, team * TEAM + i]
        other += values[b, (1 - team) * TEAM + i]
    return own - other


@inlined
def bean_distance(s, b, i):
    """Straight distance from the head of snake `i` to the nearest bean in cells, not over the edges."""
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
    """The guide's reward: who leads (or won), a bean eaten, the way to the next one, a death.

    Source: `get_reward` of the public 3v3 snakes baseline, which measures straight distances after the move and pays
    for a bean only where the game reward of the move is positive.
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
    """Writes the outcome of board `b`'s last move as `team` sees it into row `row` of the learner's arrays.

    Args:
        s: BoardArrays after the move and before a reset.
        b: Index of the board.
        team: 0 or 1.
        row: Row of the learner.
        kind: GAME, MIXED or SHAPED.
        out: StepArrays.
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
