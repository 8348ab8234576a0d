"""n-step windows: comparison with a slow search through plain lists of episodes."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.data.n_step import bootstrap_discount
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec

GAMMA = 0.9


def fields(agents: tuple[int, ...] = ()) -> dict[str, TensorSpec]:
    scalar = TensorSpec((), torch.int64)
    return {
        "obs": scalar,
        "reward": TensorSpec(agents),
        "terminated": TensorSpec((), torch.bool),
        "next_obs": scalar,
    }


class Stream:
    """Environments with random ends and failures. Transition i of all environments has obs i and next_obs -i."""

    def __init__(self, num_envs: int, seed: int, agents: tuple[int, ...] = ()) -> None:
        self.num_envs, self.agents = num_envs, agents
        self.draw = torch.Generator().manual_seed(seed)
        self.stored: list[dict] = []
        self.episode = list(range(num_envs))
        self.total = 0

    def step(self, replay: Replay) -> None:
        n = self.num_envs
        kind = torch.rand(n, generator=self.draw)
        terminated, ended, lost = kind < 0.15, kind < 0.3, kind > 0.85
        obs = torch.arange(self.total, self.total + n)
        self.total += n
        reward = torch.randn(n, *self.agents, generator=self.draw)
        replay.add({"obs": obs, "reward": reward, "terminated": terminated, "next_obs": -obs}, lost, ended | lost)
        for env in range(n):
            row = {"obs": int(obs[env]), "reward": reward[env], "terminated": bool(terminated[env])}
            if not lost[env]:
                self.stored.append({**row, "episode": (env, self.episode[env])})
            if ended[env] or lost[env]:
                self.episode[env] += 1

    def expected(self, position: int, n: int) -> tuple[torch.Tensor, bool, int, int]:
        """(reward, terminated, next_obs, steps) of the window that starts at a stored transition."""
        first = self.stored[position]
        window = [row for row in self.stored[position:] if row["episode"] == first["episode"]][:n]
        reward = sum(GAMMA**k * row["reward"] for k, row in enumerate(window))
        return reward, window[-1]["terminated"], -window[-1]["obs"], len(window)


def assert_windows_equal_the_reference(replay: Replay, stream: Stream, n: int) -> None:
    if not len(replay):
        return
    batch = replay.sample(64, NoiseSource(0)("replay", 64))
    newest = {row["obs"]: index for index, row in list(enumerate(stream.stored))[-len(replay) :]}
    for index in range(64):
        reward, terminated, next_obs, steps = stream.expected(newest[int(batch["obs"][index])], n)
        torch.testing.assert_close(batch["reward"][index], reward)
        assert bool(batch["terminated"][index]) == terminated
        assert int(batch["next_obs"][index]) == next_obs
        assert int(batch["steps"][index]) == steps
    discount = bootstrap_discount(batch, GAMMA)
    torch.testing.assert_close(discount, GAMMA ** batch["steps"] * (1 - batch["terminated"].float()))


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 6),
    capacity=st.integers(64, 90),
    num_envs=st.integers(1, 64),
    steps=st.integers(1, 12),
    agents=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 10_000),
)
def test_windows_equal_a_slow_search(n, capacity, num_envs, steps, agents, seed):
    replay = Replay(capacity, num_envs, "cpu", fields(agents), n_step=n, gamma=GAMMA)
    stream = Stream(num_envs, seed, agents)
    for _ in range(steps):
        stream.step(replay)
        assert_windows_equal_the_reference(replay, stream, n)


def test_windows_stay_right_over_many_turns_of_the_ring():
    replay = Replay(67, 5, "cpu", fields(), n_step=4, gamma=GAMMA)
    stream = Stream(5, 3)
    for step in range(200):
        stream.step(replay)
        if step % 20 == 0:
            assert_windows_equal_the_reference(replay, stream, 4)


def test_a_truncated_window_bootstraps_and_a_terminated_one_does_not():
    replay = Replay(64, 2, "cpu", fields(), n_step=3, gamma=0.5)
    no, yes = torch.tensor([False, False]), torch.tensor([True, True])
    for step, (terminated, ended) in enumerate([(no, no), (torch.tensor([True, False]), yes)]):
        obs = torch.tensor([10 * step, 10 * step + 1])
        add = {"obs": obs, "next_obs": obs + 100, "reward": torch.ones(2), "terminated": terminated}
        replay.add(add, ended=ended)
    batch = replay.sample(64, NoiseSource(0)("replay", 64))
    for obs, discount in ((0, 0.0), (1, 0.25), (10, 0.0), (11, 0.5)):
        row = (batch["obs"] == obs).nonzero()[0, 0]
        assert float(bootstrap_discount(batch, 0.5)[row]) == discount, obs
        assert int(batch["next_obs"][row]) == 110 + obs % 10, "the last observation of the episode"


def test_one_step_changes_nothing():
    plain, same = Replay(9, 2, "cpu", fields()), Replay(9, 2, "cpu", fields(), n_step=1, gamma=0.5)
    for replay in (plain, same):
        stream = Stream(2, 1)
        for _ in range(8):
            stream.step(replay)
    assert plain.state_dict().keys() == same.state_dict().keys() == {"rows", "position", "capacity"}
    one, two = (replay.sample(8, NoiseSource(0)("replay", 8)) for replay in (plain, same))
    assert one.keys() == two.keys() == fields().keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(bootstrap_discount(one, GAMMA), GAMMA * (~one["terminated"]).float())


def test_the_state_holds_the_links_and_a_lost_episode_cuts_them():
    replay, stream = Replay(70, 3, "cpu", fields(), n_step=3, gamma=GAMMA), Stream(3, 0)
    for _ in range(12):
        stream.step(replay)
    other = Replay(70, 3, "cpu", fields(), n_step=3, gamma=GAMMA)
    other.load_state_dict(copy.deepcopy(replay.state_dict()))
    assert_windows_equal_the_reference(other, stream, 3)
    other.cut(torch.ones(3, dtype=torch.bool))
    stream.episode = [number + 1000 for number in stream.episode]
    for _ in range(12):
        stream.step(other)
        assert_windows_equal_the_reference(other, stream, 3)
    with pytest.raises(ConfigError, match="Resume with off_policy.n_step=1"):
        other.load_state_dict(Replay(70, 3, "cpu", fields()).state_dict())
