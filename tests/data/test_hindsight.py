"""Hindsight relabelling: comparison with plain lists of episodes, for random ends, failures and a full ring."""

from __future__ import annotations

import copy

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.data.hindsight import Hindsight
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec

ENVS, ROWS = 3, 64
GOAL = TensorSpec((2,))
OBS = {"observation": TensorSpec((), torch.int64), "achieved_goal": GOAL, "desired_goal": GOAL}
FIELDS = {"obs": OBS, "reward": TensorSpec(()), "terminated": TensorSpec((), torch.bool), "next_obs": OBS}


def goal_reward(achieved: torch.Tensor, desired: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """1 and an end if the first numbers are equal."""
    same = achieved[:, 0] == desired[:, 0]
    return same.float(), same


def replay(capacity: int, ratio: int = 4, reward=goal_reward) -> Replay:
    return Replay(capacity, ENVS, "cpu", FIELDS, hindsight=Hindsight(capacity, ENVS, "cpu", ratio, reward))


class Stream:
    """Transition i of all environments achieves the goal (i, 0) and desires (-1, i)."""

    def __init__(self, seed: int, failures: float) -> None:
        self.draw, self.failures, self.total = torch.Generator().manual_seed(seed), failures, 0
        self.episode, self.stored = list(range(ENVS)), []

    def step(self, part: Replay) -> None:
        index = torch.arange(self.total, self.total + ENVS)
        self.total += ENVS
        kind = torch.rand(ENVS, generator=self.draw)
        ended, lost = kind < 0.15, kind > 1 - self.failures
        goal, desired = torch.stack([index, 0 * index], 1).float(), torch.stack([0 * index - 1, index], 1).float()
        obs = {"observation": index, "achieved_goal": goal - 0.5, "desired_goal": desired}
        row = {"obs": obs, "next_obs": {**obs, "achieved_goal": goal}, "terminated": ended}
        part.add({**row, "reward": torch.full((ENVS,), -7.0)}, lost, ended | lost)
        for env in range(ENVS):
            if not lost[env]:
                self.stored.append((int(index[env]), (env, self.episode[env])))
            if ended[env] or lost[env]:
                self.episode[env] += ENVS


@pytest.mark.parametrize("failures", [0.0, 0.15])
@pytest.mark.parametrize("capacity", [20, 21, 300])
def test_goals_were_achieved_later_in_the_same_episode(capacity, failures):
    part, stream = replay(capacity), Stream(0, failures)
    draw, ahead = torch.Generator().manual_seed(1), set()
    for _ in range(100):
        stream.step(part)
        newest = stream.stored[-len(part) :]
        episode_of = dict(newest)
        batch = part.sample(min(16, capacity), draw)
        for row in range(len(batch["reward"])):
            index, desired = int(batch["obs"]["observation"][row]), batch["obs"]["desired_goal"][row]
            assert torch.equal(batch["next_obs"]["desired_goal"][row], desired)
            if desired[0] < 0:
                assert desired[1] == index and batch["reward"][row] == -7.0
                continue
            goal = int(desired[0])
            assert goal >= index and episode_of[goal] == episode_of[index]
            assert batch["reward"][row] == float(goal == index) and bool(batch["terminated"][row]) == (goal == index)
            members = [each for each, episode in newest if episode == episode_of[index]]
            ahead.add(members.index(goal) - members.index(index))
    assert {0, 1, 2, 3} <= ahead


def test_every_later_goal_has_the_same_probability_and_the_ratio_holds():
    part, none = replay(60, ratio=4), torch.zeros(ENVS, dtype=torch.bool)
    for step in range(10):
        goal = torch.full((ENVS, 2), float(step))
        obs = {"observation": torch.full((ENVS,), step), "achieved_goal": goal, "desired_goal": 0 * goal - 1}
        row = {"obs": obs, "next_obs": obs, "terminated": none, "reward": torch.zeros(ENVS)}
        part.add(row, ended=torch.tensor([step == 4, False, False]))
    rows = torch.full((30_000,), 1 * ENVS)  # environment 0 at time 1; its episode ends at time 4
    point = torch.rand(30_000, generator=torch.Generator().manual_seed(0))
    goals = part.hindsight.episodes.later(rows, point) // ENVS
    shares = torch.bincount(goals, minlength=10) / 30_000
    torch.testing.assert_close(shares, torch.tensor([0, 1, 1, 1, 1, 0, 0, 0, 0, 0]) / 4, atol=0.01, rtol=0)
    last = part.hindsight.episodes.later(rows + 1, torch.full((30_000,), 1 - 2.0**-24)) // ENVS
    assert last.unique().tolist() == [9], "environment 1 has one episode so far"
    kept = torch.cat(
        [part.sample(60, NoiseSource(seed)("replay", 60))["obs"]["desired_goal"][:, 0] for seed in range(50)]
    )
    assert 0.17 < float((kept < 0).float().mean()) < 0.23


def test_without_ends_the_stored_ones_are_kept():
    part, stream = (
        replay(90, reward=lambda achieved, desired: (goal_reward(achieved, desired)[0], None)),
        Stream(2, 0.0),
    )
    for _ in range(30):
        stream.step(part)
    ends = dict(zip(part.stored["obs"]["observation"].tolist(), part.stored["terminated"].tolist(), strict=True))
    batch = part.sample(60, torch.Generator().manual_seed(0))
    assert [ends[index] for index in batch["obs"]["observation"].tolist()] == batch["terminated"].tolist()


def test_a_restored_replay_continues_bit_for_bit_and_a_lost_episode_ends():
    ours, restored, stream = replay(50), replay(50), Stream(5, 0.1)
    for _ in range(40):
        stream.step(ours)
    restored.load_state_dict(copy.deepcopy(ours.state_dict()))
    twin, last = copy.deepcopy(stream), stream.stored[-1][0]
    for _ in range(20):
        stream.step(ours)
        twin.step(restored)
        one, two = (part.sample(40, torch.Generator().manual_seed(9)) for part in (ours, restored))
        assert torch.equal(one["obs"]["desired_goal"], two["obs"]["desired_goal"])
    assert last < stream.stored[-1][0]
    restored.cut(torch.ones(ENVS, dtype=torch.bool))
    before = twin.stored[-1][0]
    for _ in range(4):
        twin.step(restored)
    batch = restored.sample(50, torch.Generator().manual_seed(0))
    old = (batch["obs"]["observation"] <= before) & (batch["obs"]["desired_goal"][:, 0] >= 0)
    assert old.any() and bool((batch["obs"]["desired_goal"][old, 0] <= before).all())


def test_a_replay_without_episodes_is_refused_at_a_resume():
    plain = Replay(10, ENVS, "cpu", FIELDS)
    with pytest.raises(ConfigError, match="filled with hindsight=0"):
        replay(10).load_state_dict(plain.state_dict())
