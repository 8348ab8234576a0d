"""Features equal their slow definition and have the documented symmetries."""

import numpy as np
import pytest

from powerband.recipes.snakes.env.observations import OBSERVATIONS
from powerband.recipes.snakes.env.rules.features import FEATURES, NUM_FEATURES
from recipes.snakes.env.reference import COLS, ROWS
from recipes.snakes.env.reference_obs import View, load, random_boards

BOARDS = 150


def features(state, team: int) -> np.ndarray:
    """Returns the features (N, 3, D) of all boards."""
    out = OBSERVATIONS["features"].spec.zeros(state.num_boards)
    OBSERVATIONS["features"].write(state, team, slice(0, state.num_boards), out)
    return out.numpy()


@pytest.fixture(scope="module")
def boards():
    return random_boards(BOARDS, seed=1)


def test_names_count():
    assert NUM_FEATURES == len(set(FEATURES)) == 122
    assert FEATURES[0] == "forward/bean" and FEATURES[39] == "left/pull" and FEATURES[60] == "bean0/forward"
    assert FEATURES[85] == "mate0/forward" and FEATURES[115] == "own/length" and FEATURES[121] == "own/fill"


def test_equal_to_the_slow_definition(boards):
    state, positions = boards
    written = [features(state, team) for team in range(2)]
    for b, position in enumerate(positions):
        view = View(position)
        for i in range(6):
            got, expected = written[i // 3][b, i % 3], view.row(i)
            wrong = [(FEATURES[k], got[k], expected[k]) for k in np.flatnonzero(np.abs(got - expected) > 1e-6)]
            assert not wrong, f"board {b} snake {i}: {wrong}\n{position}"


def test_within_one(boards):
    state, _ = boards
    for team in range(2):
        assert np.abs(features(state, team)).max() <= 1


def test_every_number_varies():
    state, _ = random_boards(400, seed=6)
    rows = features(state, 0).reshape(-1, NUM_FEATURES)
    assert not [FEATURES[k] for k in np.flatnonzero(rows.std(0) == 0)]


def moved(position: dict, change) -> dict:
    """Returns `position` with `change` applied to every cell."""
    bodies = [[change(cell) for cell in body] for body in position["bodies"]]
    return {**position, "bodies": bodies, "beans": [change(cell) for cell in position["beans"]]}


def test_shifts_change_nothing():
    state, positions = random_boards(40, seed=2, missing=0)
    for rows, cols in ((3, 0), (0, 11), (7, 5)):
        shifted = load([moved(p, lambda c, r=rows, k=cols: ((c[0] + r) % ROWS, (c[1] + k) % COLS)) for p in positions])
        for team in range(2):
            assert np.array_equal(features(shifted, team), features(state, team))


def test_half_a_turn_changes_nothing():
    state, positions = random_boards(40, seed=3, missing=0)
    turned = [moved(p, lambda c: (ROWS - 1 - c[0], COLS - 1 - c[1])) for p in positions]
    turned = load([{**p, "directions": [d ^ 1 for d in p["directions"]]} for p in turned])
    for team in range(2):
        assert np.array_equal(features(turned, team), features(state, team))


def test_a_mirror_swaps_left_and_right():
    state, positions = random_boards(40, seed=4, missing=0)
    mirrored = [moved(p, lambda c: (c[0], COLS - 1 - c[1])) for p in positions]
    turns = {0: 0, 1: 1, 2: 3, 3: 2}
    mirrored = load([{**p, "directions": [turns[d] for d in p["directions"]]} for p in mirrored])
    index_of = {name: k for k, name in enumerate(FEATURES)}
    twin = [index_of[n.replace("left/", "?").replace("right/", "left/").replace("?", "right/")] for n in FEATURES]
    sideways = [n.endswith(("/right", "/aside")) for n in FEATURES]
    for team in range(2):
        before, after = features(state, team), features(mirrored, team)[..., twin]
        after[..., sideways] *= -1
        half_round = np.isin(np.abs(before), [np.float32(0.5), np.float32(1.0)]) & sideways  # positive on both sides
        assert np.array_equal(np.where(half_round, 0, after), np.where(half_round, 0, before))


def test_features_are_symmetric_in_the_teams():
    state, positions = random_boards(60, seed=5, missing=0)
    swapped = [{**p, **{key: p[key][3:] + p[key][:3] for key in ("bodies", "directions", "scores")}} for p in positions]
    swapped = load(swapped)
    assert np.array_equal(features(swapped, 0), features(state, 1))
    assert np.array_equal(features(swapped, 1), features(state, 0))


def test_a_dead_end_by_hand():
    """A pocket of two cells is ahead, with a bean in the second one, next to the head of an opponent."""
    wall = list(range(5, 15))
    bodies = [
        [(5, c % 20) for c in range(5, -4, -1)],
        [(9, 19), (9, 18), (9, 17)],
        [(9, 15), (9, 14), (9, 13)],
        [(4, c) for c in wall],
        [(6, c) for c in wall],
        [(5, c) for c in range(8, 17)],
    ]
    state = load([{"bodies": bodies, "beans": [(5, 7)], "directions": [3, 3, 3, 2, 2, 2]}])
    row = dict(zip(FEATURES, features(state, 0)[0, 0].tolist(), strict=True))
    expected = {
        "forward/body": 0,
        "left/body": 1,
        "right/body": 1,
        "left/region": 0,
        "forward/enemy_heads": 0,
        "forward/exits": 1 / 3,
        "forward/near": 2 / 25,
        "forward/region": 2 / 100,
        "forward/room": -7 / 24,
        "forward/survival": 2 / 16,
        "forward/territory": 1 / 64,
        "forward/bean_path": 15 / 16,
        "forward/bean_torus": 14 / 15,
        "forward/bean_claim": 0,
        "forward/pull": 0,
        "bean0/forward": 0.2,
        "bean0/right": 0,
        "bean0/margin_enemy": -1 / 8,
        "enemy0/moves": 2 / 3,
        "enemy2/moves": 1 / 3,
        "own/length": 9 / 40,
        "own/fill": 44 / 200,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-6)
