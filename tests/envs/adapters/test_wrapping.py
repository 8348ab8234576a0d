"""Wrappers of Gymnasium environments as settings, action masks, and parallel environments of PettingZoo."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from powerband.core.errors import ConfigError
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.adapters.parallel_env import ParallelAgents
from powerband.envs.adapters.wrapping import Wrapping


class Counter(gymnasium.Env):
    """Counts its steps; the reward is the action, and the observation the count."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        return np.full(1, self.count, np.float32), float(action), False, False, {}


class Masked(Counter):
    """Allows the actions from its count on."""

    def action_masks(self) -> np.ndarray:
        return np.arange(5) >= self.count


def double_reward(env: gymnasium.Env) -> gymnasium.Env:
    """A wrapper of a user."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: 2 * reward)


def test_repeated_actions_add_their_rewards():
    env = Wrapping(action_repeat=3).apply(Counter())
    env.reset(seed=0)
    obs, reward, *_ = env.step(2)
    assert (obs.item(), reward) == (3.0, 6.0)


def test_stacked_frames_hold_the_newest_observations():
    env = Wrapping(frame_stack=3).apply(Counter())
    env.reset(seed=0)
    for _ in range(4):
        obs, *_ = env.step(0)
    assert obs.ravel().tolist() == [2, 3, 4]


def test_sticky_actions_repeat_the_previous_one_with_their_probability():
    env = Wrapping(sticky_actions=0.5).apply(Counter())
    env.reset(seed=0)
    rewards = [env.step(step % 5)[1] for step in range(400)]
    assert 0.35 < np.mean([reward != step % 5 for step, reward in enumerate(rewards)]) < 0.65


def test_a_wrapper_of_a_user_is_imported_and_applied():
    env = Wrapping(wrappers=(f"{__name__}:double_reward",)).apply(Counter())
    env.reset(seed=0)
    assert env.step(3)[1] == 6


def test_the_mask_of_a_method_follows_the_state():
    env = Wrapping(action_mask=True).apply(Masked())
    obs, _ = env.reset(seed=0)
    assert obs["action_mask"].tolist() == [1, 1, 1, 1, 1]
    obs, *_ = env.step(0)
    assert obs["action_mask"].tolist() == [0, 1, 1, 1, 1]
    assert env.observation_space.contains(obs)


def test_the_mask_of_the_info_is_used_by_a_vector():
    env = GymVecEnv("Taxi-v4", 2, wrapping=Wrapping(action_mask=True))
    mask = env.reset(0)["action_mask"]
    assert mask.dtype == torch.bool and mask.shape == (2, 6)
    assert not mask.all() and mask.any(1).all()


def test_the_elapsed_time_is_observed():
    env = GymVecEnv("Pendulum-v1", 1, wrapping=Wrapping(time_aware=True))
    env.reset(0)
    assert set(env.spec.obs) == {"obs", "time"}
    obs = [env.step(torch.zeros(1, 1)).obs["time"].item() for _ in range(3)]
    assert obs == pytest.approx([1 / 200, 2 / 200, 3 / 200])


def test_the_share_of_the_time_counts_repeated_actions():
    env = GymVecEnv("Pendulum-v1", 1, wrapping=Wrapping(action_repeat=60, time_aware=True))
    assert env.spec.max_episode_steps == 4, "200 steps of the environment"
    env.reset(0)
    steps = [env.step(torch.zeros(1, 1)) for _ in range(4)]
    assert [step.next_obs()["time"].item() for step in steps] == [0.25, 0.5, 0.75, 1.0]
    assert [step.truncated.item() for step in steps] == [False, False, False, True]


def test_masks_are_not_stacked():
    env = Wrapping(action_mask=True, frame_stack=3).apply(Masked())
    env.reset(seed=0)
    obs, *_ = env.step(0)
    assert obs["action_mask"].tolist() == [0, 1, 1, 1, 1] and obs["obs"].shape == (3, 1)


@pytest.mark.parametrize("option", ["action_repeat", "frame_stack"])
def test_repeated_actions_and_stacked_frames_of_agents_are_refused(option: str):
    with pytest.raises(ConfigError, match=f"wrap.{option}=2 does not suit.*Write wrap.{option}=1"):
        Wrapping(**{option: 2}).apply(ParallelAgents(Pair()))


@pytest.mark.parametrize(
    ("settings", "fix"), [({"sticky_actions": 0.25}, "sticky_actions=0"), ({"action_repeat": 2}, "action_repeat=1")]
)
def test_repeated_actions_under_masks_are_refused(settings: dict, fix: str):
    with pytest.raises(ConfigError, match=f"actions that the newest mask excludes. Write wrap.{fix}"):
        Wrapping(**settings, action_mask=True).apply(Masked())
    own_mask = Wrapping(action_mask=True).apply(Masked())  # a mask that the environment itself observes
    with pytest.raises(ConfigError, match=f"Write wrap.{fix}"):
        Wrapping(**settings).apply(own_mask)


def test_sticky_actions_of_agents_follow_the_seed():
    env = Wrapping(sticky_actions=0.5).apply(ParallelAgents(Pair()))

    def executed() -> list[list[float]]:
        rows = []
        for seed in range(20):
            env.reset(seed=seed)
            env.step(np.array([1, 1]))
            rows.append(env.step(np.array([2, 2]))[1].tolist())
        return rows

    first = executed()
    assert executed() == first and [1.0, 1.0] in first and [2.0, 2.0] in first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"wrappers": ("no_such_module:Thing",)},
            "wrap.wrappers=no_such_module:Thing cannot be imported.*Write module:",
        ),
        ({"wrappers": ("gymnasium.wrappers:NoSuch",)}, "NoSuch cannot be imported"),
        ({"grayscale": True}, "wrap.grayscale does not suit.*Leave wrap.grayscale out"),
        ({"image_size": 32}, "wrap.image_size does not suit"),
        ({"atari": True}, "wrap.atari does not suit"),
        ({"action_mask": True}, r"neither the method action_masks\(\) nor info\['action_mask'\]"),
    ],
)
def test_wrappers_that_do_not_suit_are_refused(settings: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        Wrapping(**settings).apply(Counter()).reset(seed=0)


@pytest.mark.parametrize("settings", [{"sticky_actions": 1.0}, {"frame_stack": 0}, {"action_repeat": 0}])
def test_values_out_of_range_are_refused(settings: dict):
    with pytest.raises(ConfigError, match="Write"):
        Wrapping(**settings)


def test_atari_frames_are_grey_stacked_bytes():
    pytest.importorskip("ale_py")
    env = GymVecEnv("ALE/Pong-v5", 2, wrapping=Wrapping(atari=True, frame_stack=4))
    assert (env.spec.obs.shape, env.spec.obs.dtype, env.spec.obs.high) == ((4, 84, 84), torch.uint8, 255.0)
    assert env.reset(0).float().std() > 1
    env.close()


class Pair:
    """Parallel environment whose first agent leaves after two steps and the second after three."""

    possible_agents = ["a", "b"]
    metadata: dict[str, Any] = {}

    def __init__(self, truncates: bool = False, same: bool = True) -> None:
        self.truncates, self.same = truncates, same

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (2 if self.same or agent == "a" else 3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents, self.steps = list(self.possible_agents), 0
        return {agent: np.ones(2, np.float32) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents)
        self.steps += 1
        done = {agent: self.steps >= 2 + (agent == "b") for agent in self.agents}
        obs = {agent: np.full(2, 0.5, np.float32) for agent in self.agents}
        rewards = {agent: float(actions[agent]) for agent in self.agents}
        no = dict.fromkeys(self.agents, False)
        self.agents = [agent for agent in self.agents if not done[agent]]
        return (obs, rewards, no, done, {}) if self.truncates else (obs, rewards, done, no, {})

    def close(self) -> None:
        pass


@pytest.mark.parametrize("truncates", [False, True])
def test_agents_that_leave_observe_zeros_until_the_episode_ends(truncates: bool):
    env = ParallelAgents(Pair(truncates))
    assert env.action_space == spaces.MultiDiscrete([3, 3]) and env.observation_space.shape == (2, 2)
    env.reset(seed=0)
    obs, reward, terminated, truncated, _ = env.step(np.array([1, 2]))
    assert reward.tolist() == [1, 2] and not terminated and not truncated
    env.step(np.array([1, 1]))
    obs, reward, terminated, truncated, _ = env.step(np.array([2, 2]))
    assert obs[0].tolist() == [0, 0] and obs[1].tolist() == [0.5, 0.5] and reward.tolist() == [0, 2]
    assert (terminated, truncated) == (not truncates, truncates)


def test_agents_with_different_spaces_are_refused():
    with pytest.raises(ConfigError, match="need equal spaces.*pad_observations_v0"):
        ParallelAgents(Pair(same=False))


def test_a_pettingzoo_environment_is_created_by_its_module():
    pytest.importorskip("pettingzoo")
    env = GymVecEnv("pettingzoo.classic.rps_v2:parallel_env", 2)
    assert env.spec.num_agents == 2 and env.spec.num_actions == 3
    assert env.reset(0).shape == (2, 2)
    step = env.step(torch.tensor([[0, 1], [2, 1]]))
    assert step.reward.tolist() == [[-1, 1], [1, -1]]
    env.close()
