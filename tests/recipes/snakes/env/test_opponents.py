"""Opponents: greedy against plain Python, random by its distribution, policies by their observations."""

import pytest
import torch

from powerband.recipes.snakes.env.observations import OBSERVATIONS
from powerband.recipes.snakes.env.opponents import GreedyOpponent, PolicyOpponent, RandomOpponent
from recipes.snakes.env.reference_obs import LEFT_OF, greedy_actions, load, random_boards


class Env:
    """The attributes of an environment that an opponent reads."""

    def __init__(self, state, seed: int = 3):
        self.state, self.seed = state, seed


@pytest.fixture(scope="module")
def boards():
    return random_boards(300, seed=21)


@pytest.mark.parametrize("distance", ["plain", "torus"])
def test_greedy_equals_the_slow_definition(boards, distance):
    state, positions = boards
    opponent = GreedyOpponent(distance)
    for team in range(2):
        actions = opponent.act_team(state, slice(0, 300), team)
        assert actions.dtype == torch.int64
        for b, position in enumerate(positions):
            assert actions[b].tolist() == greedy_actions(position, team, distance == "torus"), f"board {b}: {position}"
    assert torch.equal(opponent.act(Env(state), slice(40, 60)), actions[40:60])


def test_greedy_by_hand():
    """Three snakes of team B in a column divide the beans; only `torus` measures across the edge."""
    bodies = [[(r, 15), (r, 16), (r, 17)] for r in (1, 3, 5)] + [[(r, 3), (r, 4), (r, 5)] for r in (1, 3, 5)]
    beans = [(1, 1), (1, 9), (9, 3), (5, 19)]
    state = load([{"bodies": bodies, "beans": beans, "directions": [2] * 6}])
    # (1, 3) takes (1, 1); (3, 3) goes down to (9, 3); (5, 3) to (1, 9), up because its own body is on the right.
    assert GreedyOpponent().act(Env(state), slice(0, 1)).tolist() == [[2, 1, 0]]
    # Over the edge (9, 3) is 2 from (1, 3) as well, but newer, and 4 up from (3, 3); (5, 19) is 4 from (5, 3).
    assert GreedyOpponent("torus").act(Env(state), slice(0, 1)).tolist() == [[2, 0, 2]]


def test_greedy_refuses_other_distances():
    with pytest.raises(ValueError, match="Unknown distance 'manhattan'"):
        GreedyOpponent("manhattan")


def test_random_is_uniform_and_keyed(boards):
    state, _ = boards
    env = Env(state)
    actions = RandomOpponent().act(env, slice(0, 300))
    counts = torch.bincount(actions.flatten(), minlength=4)
    assert counts.sum() == 900 and counts.min() > 180 and counts.max() < 270
    assert torch.equal(actions[100:200], RandomOpponent().act(env, slice(100, 200)))
    assert not torch.equal(actions, RandomOpponent(seed=1).act(env, slice(0, 300)))
    assert torch.equal(
        RandomOpponent(seed=1).act(env, slice(0, 300)), RandomOpponent().act(Env(state, 4), slice(0, 300))
    )
    assert not torch.equal(actions, RandomOpponent().act_team(state, slice(0, 300), 0, env.seed))
    state.tick.add_(1)
    later = RandomOpponent().act(env, slice(0, 300))
    state.tick.sub_(1)
    assert not torch.equal(actions, later)


def test_a_policy_observes_its_team_and_acts_in_its_frame(boards):
    state, _ = boards
    observations = {}

    def turn_left(obs):
        observations["features"] = obs
        return torch.ones(obs.shape[:2], dtype=torch.int64)

    def go_down(obs):
        observations["planes"] = obs
        return torch.ones(obs.shape[:2], dtype=torch.int64)

    actions = PolicyOpponent(turn_left).act(Env(state), slice(10, 50))
    directions = state.direction[10:50, 3:].tolist()
    assert actions.tolist() == [[LEFT_OF[d] for d in row] for row in directions]
    actions = PolicyOpponent(go_down, observation="planes").act_team(state, slice(10, 50), 0)
    assert (actions == 1).all()
    for name, team in (("features", 1), ("planes", 0)):
        expected = OBSERVATIONS[name].spec.zeros(40)
        OBSERVATIONS[name].write(state, team, slice(10, 50), expected)
        assert torch.equal(observations[name], expected)
    with pytest.raises(ValueError, match="Unknown observation"):
        PolicyOpponent(go_down, observation="pixels")
