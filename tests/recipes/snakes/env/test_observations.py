"""Observations equal those in plain Python, for slices and lists of boards, masks, teams and threads."""

import numba
import numpy as np
import pytest
import torch

from envs.cuda_child import run
from powerband.recipes.snakes.env.observations import NUM_PLANES, OBSERVATIONS, relative_to_absolute
from powerband.recipes.snakes.env.rules.game import absolute_action
from recipes.snakes.env import reference_obs
from recipes.snakes.env.reference_obs import LEFT_OF, RIGHT_OF, load, random_boards

PLAIN = ("baseline26", "fork35", "planes")


@pytest.fixture(scope="module")
def boards():
    return random_boards(200, seed=11)


def write(name: str, state, team: int, boards, **options) -> torch.Tensor:
    """Returns a new tensor with the observations of `team`."""
    count = len(boards) if isinstance(boards, torch.Tensor) else len(range(*boards.indices(state.num_boards)))
    out = OBSERVATIONS[name].spec.zeros(count)
    OBSERVATIONS[name].write(state, team, boards, out, **options)
    return out


def test_shapes():
    shapes = {name: observation.spec.shape for name, observation in OBSERVATIONS.items()}
    assert shapes == {
        "baseline26": (3, 26),
        "fork35": (3, 35),
        "planes": (3, NUM_PLANES, 10, 20),
        "features": (3, 122),
    }
    assert [OBSERVATIONS[name].num_actions for name in (*PLAIN, "features")] == [4, 4, 4, 3]
    assert [OBSERVATIONS[name].relative for name in (*PLAIN, "features")] == [False, False, False, True]


@pytest.mark.parametrize("name", PLAIN)
def test_equal_to_the_slow_definition(boards, name):
    state, positions = boards
    for team in range(2):
        written = write(name, state, team, slice(None)).flatten(2).numpy()
        for b, position in enumerate(positions):
            for slot in range(3):
                expected = getattr(reference_obs, name)(position, 3 * team + slot)
                np.testing.assert_allclose(written[b, slot], expected, rtol=0, atol=1e-5, err_msg=f"board {b}")


def test_codes_heads_and_beans_by_hand():
    bodies = [
        [(0, 0), (0, 1), (0, 2)],
        [(9, 0), (8, 0), (7, 0)],  # its head is above that of snake 0, over the edge
        [(4, 4), (4, 5), (4, 6)],
        [(0, 19), (1, 19), (2, 19)],  # left of snake 0, over the edge
        [(6, 10), (6, 11), (6, 12)],
        [(9, 10), (9, 11), (9, 12)],
    ]
    state = load([{"bodies": bodies, "beans": [(1, 0), (5, 0)], "directions": [2, 1, 2, 0, 2, 2]}])
    beans = [1, 0, 5, 0, -1, -1, -1, -1, -1, -1]
    row = write("baseline26", state, 0, slice(0, 1))[0, 0].tolist()
    assert row == [0, 0, 3, 1, 5, 2, *beans, 9, 0, 4, 4, 0, 19, 6, 10, 9, 10]
    row = write("baseline26", state, 1, slice(0, 1))[0, 0].tolist()
    assert row == [0, 19, 0, 2, 0, 5, *beans, 6, 10, 9, 10, 0, 0, 9, 0, 4, 4]
    row = write("fork35", state, 0, slice(0, 1))[0, 0].tolist()
    assert row[16:23] == pytest.approx([0, 1, 1, 0, 5, 5, 0.15])
    assert row[33:] == pytest.approx([1 / 2, 1 / (np.hypot(4, 10) + 1)])


@pytest.mark.parametrize("name", PLAIN)
def test_observations_are_symmetric_in_the_teams(name):
    _, positions = random_boards(50, seed=12, missing=0)
    swap = {key: [p[key][3:] + p[key][:3] for p in positions] for key in ("bodies", "directions", "scores")}
    swapped = [{**p, **{key: swap[key][b] for key in swap}} for b, p in enumerate(positions)]
    state, other = load(positions), load(swapped)
    for team in range(2):
        assert torch.equal(write(name, state, team, slice(None)), write(name, other, 1 - team, slice(None)))


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_slices_lists_and_masks_write_the_same_rows(boards, name):
    state, _ = boards
    everything = write(name, state, 1, slice(None))
    assert torch.equal(write(name, state, 1, slice(20, 90)), everything[20:90])
    chosen = torch.tensor([7, 3, 199, 3])
    assert torch.equal(write(name, state, 1, chosen), everything[chosen])
    mask = torch.arange(70) % 3 == 0
    some = torch.full_like(everything[20:90], 7.0)
    OBSERVATIONS[name].write(state, 1, slice(20, 90), some, mask)
    assert torch.equal(some[mask], everything[20:90][mask])
    assert (some[~mask] == 7).all()
    assert write(name, state, 1, slice(5, 5)).shape[0] == 0


def test_the_number_of_threads_changes_nothing(boards):
    state, _ = boards
    threads = numba.get_num_threads()
    try:
        for name in OBSERVATIONS:
            results = []
            for count in {1, min(2, numba.config.NUMBA_NUM_THREADS)}:
                numba.set_num_threads(count)
                results.append(write(name, state, 0, slice(None)))
            assert all(torch.equal(results[0], result) for result in results)
    finally:
        numba.set_num_threads(threads)


def test_torch_keeps_its_threads():
    script = """
import torch
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.observations import OBSERVATIONS
torch.set_num_threads(1)
OBSERVATIONS["baseline26"].write(SnakesState.empty(1), 0, slice(0, 1), torch.zeros(1, 3, 26))
print(torch.get_num_threads())
"""
    assert run(script).strip() == "1"


def test_wrong_shapes_are_refused(boards):
    state, _ = boards
    with pytest.raises(ValueError, match=r"must be \(200, 3, 26\)"):
        OBSERVATIONS["baseline26"].write(state, 0, slice(None), torch.zeros(200, 3, 35))
    with pytest.raises(ValueError, match="step 1"):
        OBSERVATIONS["baseline26"].write(state, 0, slice(0, 10, 2), torch.zeros(5, 3, 26))


def test_relative_actions():
    direction = torch.arange(4, dtype=torch.int16).repeat_interleave(3).view(2, 6)
    relative = torch.arange(3).repeat(4).view(2, 6)
    expected = [d if r == 0 else (LEFT_OF, RIGHT_OF)[r - 1][d] for d in range(4) for r in range(3)]
    absolute = relative_to_absolute(direction, relative)
    assert absolute.dtype == torch.int64 and absolute.flatten().tolist() == expected
    assert [absolute_action(d, r) for d in range(4) for r in range(3)] == expected
