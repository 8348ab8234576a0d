"""Vectorised environment: rows, autoreset, rewards, figures, resume; results depend on seed and board only."""

import numba
import pytest
import torch

from powerband.data.types import VecEnv
from powerband.recipes.snakes.env.board import dump_board, load_board
from powerband.recipes.snakes.env.env import SnakesEnv

TEAM_B = slice(3, 6)
HELD = [[(9, c), (9, c + 1), (9, c + 2)] for c in (0, 4, 8, 12)]


class Held:
    """Opponent that always moves in one direction, and records the boards of its calls."""

    def __init__(self, direction: int):
        self.direction, self.calls = direction, []

    def act(self, env, boards):
        self.calls.append(boards)
        return torch.full((boards.stop - boards.start, 3), self.direction)


def play(env: SnakesEnv, steps: int, seed: int = 0):
    """Yields the steps of random play; the actions of a board do not depend on the other boards."""
    for t in range(steps):
        rows = []
        for board in env.state.board_id.tolist():
            generator = torch.Generator().manual_seed(1000003 * seed + 1009 * board + t)
            rows.append(torch.randint(0, env.spec.num_actions, (2, 3), generator=generator))
        both = torch.stack(rows)
        yield env.step(torch.cat([both[:, 0], both[: env.mirrored, 1]]))


def same(a: dict, b: dict) -> bool:
    """Returns True if two state dicts are equal bit for bit."""
    return a.keys() == b.keys() and all((torch.as_tensor(a[k]) == torch.as_tensor(b[k])).all() for k in a)


@pytest.mark.parametrize("observation", ["features", "baseline26", "fork35", "planes"])
def test_shapes_and_protocol(observation):
    env = SnakesEnv(4, observation=observation, mirrored=0.5, opponents=[(0.5, Held(0))])
    assert isinstance(env, VecEnv)
    assert env.num_envs == 6
    assert env.spec.num_actions == (3 if observation == "features" else 4)
    for step in play(env, 3):
        assert step.obs.shape == (6, *env.spec.obs.shape) and step.obs.dtype == torch.float32
        assert step.reward.shape == (6, 3) and step.reward.dtype == torch.float32
        assert step.terminated.shape == step.truncated.shape == (6,)
        assert step.terminated.dtype == step.truncated.dtype == torch.bool
        assert all(figure.shape == (6,) for figure in step.episode.values())
    env.close()


def test_truncation_after_200_moves_and_the_new_game():
    env = SnakesEnv(3, stagger=False, observation="baseline26")
    for t, step in enumerate(play(env, 200), start=1):
        final = env.state.state_dict() if t == 199 else None
        assert step.truncated.all() == (t == 200) == step.truncated.any()
        assert not step.terminated.any()
        assert (step.final_obs is None) == (t < 200)
        if final:
            assert final["step_count"].tolist() == [199] * 3
    assert env.state.step_count.tolist() == [0] * 3
    assert env.state.score.abs().sum() == 0
    assert (env.state.length == 3).all() and (env.state.beans >= 0).all()
    assert torch.equal(step.obs, env.observe())
    assert not torch.equal(step.final_obs, step.obs)
    assert torch.equal(step.next_obs(), step.final_obs)


def test_final_obs_is_the_observation_before_the_reset():
    """The final observation equals the observation of a copy of the board whose game does not end."""
    envs = [SnakesEnv(2, stagger=False, observation="baseline26", seed=3) for _ in range(2)]
    envs[0].state.step_count[1] = 199
    action = torch.randint(0, 4, (4, 3), generator=torch.Generator().manual_seed(0))
    ending, going = (env.step(action) for env in envs)
    assert ending.truncated.tolist() == [False, True, False, True]
    assert torch.equal(ending.final_obs[ending.ended], going.obs[ending.ended])
    assert torch.equal(ending.obs[~ending.ended], going.obs[~ending.ended])
    assert not torch.equal(ending.obs[ending.ended], going.obs[ending.ended])


def test_obs_is_valid_after_the_next_recv():
    env = SnakesEnv(2, observation="baseline26", stagger=False)
    last, kept = env.reset(), None
    kept = last.clone()
    for step in play(env, 250):
        assert torch.equal(last, kept)
        last, kept = step.obs, step.obs.clone()


def test_relative_actions_turn_the_direction():
    env = SnakesEnv(1, observation="features", stagger=False)
    bodies = [[(2, 5), (2, 4), (2, 3)], [(6, 5), (6, 6), (6, 7)], [(4, 12), (3, 12), (2, 12)], *HELD[:3]]
    load_board(env.state, 0, bodies=bodies, beans=[], directions=[3, 2, 1, 2, 2, 2])
    env.step(torch.tensor([[1, 1, 2], [0, 2, 2]]))
    position = dump_board(env.state, 0)
    assert position["directions"] == [0, 1, 2, 2, 0, 0]
    assert [body[0] for body in position["bodies"][:3]] == [(1, 5), (7, 5), (4, 11)]


REWARD_CASE = {
    "bodies": [
        [(2, 5), (2, 4), (2, 3)],  # eats the bean at (2, 6)
        [(5, 5), (5, 4), (5, 3), (5, 2)],  # dies in the body of snake 3
        [(7, 5), (7, 4), (7, 3)],
        [(4, 6), (5, 6), (6, 6)],
        *HELD[1:3],
    ],
    "beans": [(2, 6), (8, 7), (0, 15), (0, 16), (0, 17)],
    "directions": [3, 3, 3, 0, 2, 2],
}
ALL_RIGHT = torch.tensor([[3, 3, 3], [0, 2, 2]])


@pytest.mark.parametrize("reward", ["game", "mixed", "shaped"])
@pytest.mark.parametrize("step_count", [10, 199])
def test_rewards(reward, step_count):
    env = SnakesEnv(1, observation="baseline26", reward=reward, stagger=False)
    load_board(env.state, 0, **REWARD_CASE, step_count=step_count, scores=[3, 0, 0, 1, 0, 0])
    step = env.step(ALL_RIGHT)
    assert step.ended.tolist() == [step_count == 199] * 2
    assert step.terminated.tolist() == [step_count == 199 and reward == "shaped"] * 2
    game = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]])
    if reward == "game":
        expected = game
    elif reward == "mixed":
        expected = 0.8 * game + 0.1 * torch.tensor([[0.0], [0.0]])
    else:
        ahead, behind = (50.0, -25.0) if step_count == 199 else (10.0, -5.0)
        expected = torch.full((2, 3), float("nan"))
        expected[0, 0] = ahead + 20
        expected[0, 2] = ahead - (1 + 1) ** 0.5  # from (7, 6) to the bean at (8, 7)
        assert step.reward[0, 1] < ahead - 10
        nearest = (1 + 4**2) ** 0.5  # from (9, 3) to the same bean, if the new one is not nearer
        assert behind - nearest - 1e-5 <= step.reward[1, 1] < behind
    known = ~expected.isnan()
    torch.testing.assert_close(step.reward[known], expected[known])
    if step_count == 199:
        figures = {name: values.tolist() for name, values in step.episode.items()}
        assert figures == {
            "score": [3, 1],
            "opponent_score": [1, 3],
            "win": [1, 0],
            "draw": [0, 0],
            "loss": [0, 1],
        }


def test_mixed_reward_counts_the_team_difference():
    env = SnakesEnv(1, observation="baseline26", reward="mixed", stagger=False)
    case = {**REWARD_CASE, "beans": REWARD_CASE["beans"][1:]}  # nothing to eat: only the death of snake 1 counts
    load_board(env.state, 0, **case)
    step = env.step(ALL_RIGHT)
    torch.testing.assert_close(step.reward, torch.tensor([[-0.1, -0.9, -0.1], [0.1, 0.1, 0.1]]))


def test_returns_sum_to_the_score():
    env = SnakesEnv(4, observation="baseline26", stagger=False)
    total = torch.zeros(8)
    for step in play(env, 200):
        total += step.reward.sum(1)
    assert torch.equal(step.episode["score"], total)
    assert torch.equal(step.episode["opponent_score"], total.roll(4))
    assert torch.equal(step.episode["win"] + step.episode["draw"] + step.episode["loss"], torch.ones(8))


def test_opponents_play_their_share_of_team_b():
    up, left = Held(0), Held(2)
    env = SnakesEnv(10, observation="baseline26", mirrored=0.2, opponents=[(0.5, up), (0.3, left)])
    assert env.mirrored == 2 and env.num_envs == 12
    env.step(torch.zeros(12, 3, dtype=torch.int64))
    assert up.calls == [slice(2, 7)] and left.calls == [slice(7, 10)]
    assert env._moves[env._turn].actions[2:, TEAM_B].tolist() == [[0] * 3] * 5 + [[2] * 3] * 3
    assert torch.equal(env.team_obs(0, slice(0, 10)), env.observe()[:10])
    assert torch.equal(env.team_obs(1, slice(0, 2)), env.observe()[10:])


@pytest.mark.parametrize("num_boards", [6, 3000])
def test_same_bits_for_any_threads_and_any_split(num_boards):
    generator = torch.Generator().manual_seed(1)
    actions = torch.randint(0, 4, (25, 2, num_boards, 3), generator=generator)
    half = num_boards // 2

    def run(first, count, threads):
        env = SnakesEnv(count, observation="baseline26", seed=9, first_board=first, threads=threads)
        rewards = []
        for action in actions[:, :, first : first + count]:
            step = env.step(action.reshape(-1, 3))
            rewards.append(step.reward.view(2, count, 3).clone())
        return torch.stack(rewards, 0), env.state.state_dict(), step.obs.view(2, count, -1)

    full = run(0, num_boards, 1)
    threaded = run(0, num_boards, numba.config.NUMBA_NUM_THREADS)
    left, right = run(0, half, 1), run(half, num_boards - half, 1)
    assert torch.equal(full[0], threaded[0]) and same(full[1], threaded[1]) and torch.equal(full[2], threaded[2])
    assert torch.equal(full[0], torch.cat([left[0], right[0]], 2))
    assert torch.equal(full[2], torch.cat([left[2], right[2]], 1))
    assert same(full[1], {name: torch.cat([left[1][name], right[1][name]]) for name in full[1]})


def test_seeds():
    states = [SnakesEnv(5, observation="baseline26", seed=seed).state.state_dict() for seed in (1, 1, 2)]
    assert same(states[0], states[1])
    assert not torch.equal(states[0]["head"], states[2]["head"])
    env = SnakesEnv(5, observation="baseline26", seed=2)
    for _ in play(env, 10):
        pass
    env.reset()
    assert not torch.equal(env.state.head, states[2]["head"])
    env.reset(seed=1)
    assert same(env.state.state_dict(), states[0])


def test_resume_is_exact():
    env = SnakesEnv(4, observation="baseline26", seed=5)
    for _ in play(env, 150):
        pass
    saved = env.state_dict()
    on = [(s.reward.clone(), s.obs.clone(), s.ended.clone()) for s in play(env, 120, seed=1)]
    other = SnakesEnv(4, observation="baseline26", seed=0)
    other.load_state_dict(saved)
    again = [(s.reward.clone(), s.obs.clone(), s.ended.clone()) for s in play(other, 120, seed=1)]
    assert all(torch.equal(x, y) for a, b in zip(on, again, strict=True) for x, y in zip(a, b, strict=True))
    assert any(ended.any() for _, _, ended in on)
    with pytest.raises(ValueError, match="same number of boards"):
        SnakesEnv(3, observation="baseline26").load_state_dict(saved)


def test_stagger_spreads_the_ends():
    for num_boards in (10, 200, 1000):
        counts = SnakesEnv(num_boards, observation="baseline26").state.step_count
        parts = torch.histc(counts.float(), bins=5, min=0, max=200)
        assert counts.min() >= 0 and counts.max() < 200
        assert (parts - num_boards / 5).abs().max() <= 1 + 0.02 * num_boards


def test_invalid_arguments_are_refused():
    held = Held(0)
    for message, arguments in {
        "num_boards=0 is below 1": {"num_boards": 0},
        "Unknown observation 'pixels'": {"observation": "pixels"},
        "Unknown reward 'dense'": {"reward": "dense"},
        "threads=0 is outside": {"threads": 0},
        "sum to 1": {"opponents": [(0.5, held)]},
        "seed=-1 is outside": {"seed": -1},
    }.items():
        with pytest.raises(ValueError, match=message):
            SnakesEnv(**{"num_boards": 2, **arguments})
    env = SnakesEnv(2, observation="features")
    for message, action in {
        r"must be \(4, 3\)": torch.zeros(2, 3, dtype=torch.int64),
        "torch.int64": torch.zeros(4, 3),
        "must be in 0..2": torch.full((4, 3), 3),
    }.items():
        with pytest.raises(ValueError, match=message):
            env.send(action)
    with pytest.raises(RuntimeError, match="without send"):
        env.recv()
    env.send(torch.zeros(4, 3, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="send was called twice"):
        env.send(torch.zeros(4, 3, dtype=torch.int64))
