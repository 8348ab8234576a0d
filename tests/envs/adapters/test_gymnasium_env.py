"""Gymnasium environments by id: specs, ends of episodes, and messages for invalid options."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from powerband.bench.slow_envs import TrackingEnv, make_slow
from powerband.core.errors import ConfigError
from powerband.envs.adapters.by_id import make_gym
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.adapters.wrapping import Wrapping
from powerband.envs.workers.spaces import Spaces
from powerband.envs.workers.vector import WorkerVecEnv


def test_spec_of_a_continuous_and_of_a_discrete_environment() -> None:
    pendulum, cartpole = GymVecEnv("Pendulum-v1", 2).spec, GymVecEnv("CartPole-v1", 2).spec
    assert (pendulum.num_actions, pendulum.action.shape, pendulum.max_episode_steps) == (None, (1,), 200)
    assert (pendulum.low.tolist(), pendulum.high.tolist(), pendulum.obs.shape) == ([-2.0], [2.0], (3,))
    assert (cartpole.num_actions, cartpole.action.shape, cartpole.action.dtype) == (2, (), torch.int64)
    assert cartpole.low is None and cartpole.num_agents is None and cartpole.resume == "replayed"


def test_the_time_limit_truncates_and_the_task_terminates() -> None:
    env = GymVecEnv("CartPole-v1", 3, env_kwargs={"max_episode_steps": 4})
    env.reset(0)
    for _ in range(4):
        step = env.step(torch.zeros(3, dtype=torch.int64))
    assert step.truncated.all() and not step.terminated.any() and env.spec.max_episode_steps == 4
    env = GymVecEnv("CartPole-v1", 3)
    env.reset(0)
    ends = [env.step(torch.zeros(3, dtype=torch.int64)) for _ in range(20)]
    assert any(step.terminated.any() for step in ends) and not any(step.truncated.any() for step in ends)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_users_own_module_registers_its_environment(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"my_robot_{num_workers}.py").write_text(
        "import gymnasium\n"
        "pendulum = 'gymnasium.envs.classic_control:PendulumEnv'\n"
        "gymnasium.register('MyRobot-v0', entry_point=pendulum, max_episode_steps=7)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    env = GymVecEnv(f"my_robot_{num_workers}:MyRobot-v0", 2, num_workers)
    assert env.spec.max_episode_steps == 7
    env.close()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPol-v1", "not registered.*Nearest: CartPole-v1"),
        ("Pendulum-v9", "not registered.*Nearest: Pendulum-v1"),
        ("Pendulum v1", "not registered"),
        ("no_such_module:MyEnv-v0", "Python finds no module no_such_module.*PYTHONPATH=FOLDER"),
    ],
)
def test_invalid_environments_are_refused_with_a_message(env_id: str, message: str) -> None:
    for num_workers in (0, 1):
        with pytest.raises(ConfigError, match=message):
            GymVecEnv(env_id, 2, num_workers)


def test_an_unsupported_argument_is_reported() -> None:
    with pytest.raises(ConfigError, match="env_kwargs={'gravity': 1}.*gravity"):
        GymVecEnv("Pendulum-v1", 1, env_kwargs={"gravity": 1})


def test_tuples_become_trees_of_their_entries() -> None:
    env = GymVecEnv("Blackjack-v1", 3)
    assert {key: spec.categories for key, spec in env.spec.obs.items()} == {"0": (32,), "1": (11,), "2": (2,)}
    obs = env.reset(0)
    assert all(leaf.shape == (3,) and leaf.dtype == torch.int64 for leaf in obs.values())
    assert 4 <= int(obs["0"].min()) and int(obs["1"].min()) >= 1, "the entries are the sum of the hand and a card"


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(8), r"Text\(.*Encode the text as numbers with gymnasium.wrappers.TransformObservation"),
        (spaces.Sequence(spaces.Discrete(3)), "Sequence.*Pad the sequence"),
        (spaces.Dict({"a": spaces.Dict({})}), r"observation\['a'\] space .* is empty"),
        (spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Text(4)]), r"observation\[1\] space Text"),
    ],
)
def test_spaces_without_a_tensor_form_are_refused(space: spaces.Space, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Spaces.from_spaces(space, spaces.Discrete(2), num_agents=None, max_episode_steps=None)


def test_discrete_observations_count_from_0() -> None:
    env = GymVecEnv("FrozenLake-v1", 2, env_kwargs={"is_slippery": False})
    assert env.spec.obs.shape == () and env.spec.obs.dtype == torch.int64
    assert env.reset(0).tolist() == [0, 0] and env.step(torch.tensor([2, 1])).obs.tolist() == [1, 4]


@pytest.mark.parametrize("work", ["sleep", "compute"])
def test_slow_environments_have_their_step_time_and_two_of_them_sleep_in_parallel(work: str) -> None:
    env = WorkerVecEnv([(make_slow, {"step_ms": 40.0, "work": work})] * 2, num_workers=2)
    env.reset(0)
    started = time.perf_counter()
    for _ in range(5):
        env.step(torch.zeros(2, 1))
    elapsed = time.perf_counter() - started
    env.close()
    assert elapsed >= 0.2 and (work == "compute" or elapsed < 0.38)
    with pytest.raises(ValueError, match="step_ms=-1"):
        make_slow(-1)


def test_tracking_can_be_learned() -> None:
    """A controller with two gains has a far higher return than no action."""

    def score(gain: float, damping: float) -> float:
        env = WorkerVecEnv([TrackingEnv] * 16, num_workers=0)
        obs, total = env.reset(0), torch.zeros(16)
        for _ in range(100):
            step = env.step((gain * obs[:, :1] - damping * obs[:, 1:]).clamp(-1, 1))
            obs, total = step.obs, total + step.reward
        assert step.truncated.all()
        return float(total.mean())

    no_action, controller = score(0.0, 0.0), score(8.0, 4.0)
    assert no_action < 3 * controller < 0, (no_action, controller)
    slow = make_slow(0.0, "Pendulum-v1")
    assert slow.spec.max_episode_steps == 200


class NamedArguments(gymnasium.Env):
    """Its arguments have the names of those that `make_gym` has itself."""

    observation_space = gymnasium.spaces.Box(0, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, env_id: str = "", wrapping: int = 0, broken: bool = False):
        self.arguments = env_id, wrapping
        if broken:
            len(wrapping)  # a bug of the constructor


gymnasium.register("NamedArguments-v0", NamedArguments)


def test_arguments_may_have_any_name():
    env = make_gym("NamedArguments-v0", None, {"env_id": "mine", "wrapping": 3})
    assert env.unwrapped.arguments == ("mine", 3)
    GymVecEnv("NamedArguments-v0", 1, env_kwargs={"env_id": "mine", "wrapping": 3}).close()


def test_only_unknown_arguments_are_blamed_on_the_settings():
    with pytest.raises(ConfigError, match="does not accept env_kwargs=.*Remove that argument"):
        make_gym("NamedArguments-v0", None, {"unknown": 1})
    with pytest.raises(TypeError, match="no len"):
        make_gym("NamedArguments-v0", None, {"broken": True})
    with pytest.raises(ConfigError, match="wrap.atari=true needs a game of ALE.*Leave wrap.atari out"):
        make_gym("NamedArguments-v0", Wrapping(atari=True))
