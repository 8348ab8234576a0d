"""Vectors of other libraries: with every autoreset mode, every row is a real transition."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from contract.contract import assert_same, check_env, play
from contract.fakes import NextStepPool
from powerband.envs.adapters.autoreset import EnvPoolVector, GymnasiumVector
from powerband.envs.adapters.external import ExternalVecEnv
from powerband.envs.adapters.gymnasium_env import GymVecEnv

MODES = list(AutoresetMode)


def external(
    env_id: str, num_envs: int, seed: int, first_env: int, *, kind: type, mode: AutoresetMode
) -> ExternalVecEnv:
    makes = [functools.partial(gymnasium.make, env_id, disable_env_checker=True)] * num_envs
    return ExternalVecEnv(GymnasiumVector(kind(makes, autoreset_mode=mode)), seed=seed, first_env=first_env)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasium_vectors_keep_the_contract(kind: type, mode: AutoresetMode) -> None:
    def make_env(num_envs: int, seed: int, first_env: int) -> ExternalVecEnv:
        return external("CartPole-v1", num_envs, seed, first_env, kind=kind, mode=mode)

    check_env(make_env, steps=60, num_envs=2, terminates=True, is_first_obs=lambda obs: (obs.abs() <= 0.05).all(1))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_an_external_vector_has_the_trajectories_of_worker_processes(env_id: str, mode: AutoresetMode) -> None:
    own = GymVecEnv(env_id, 3, 0, first_env=2)
    adapted = external(env_id, 3, 0, 2, kind=SyncVectorEnv, mode=mode)
    _, expected, actions = play(own, 5, 230)
    adapted.reset(5)
    assert_same([adapted.step(action) for action in actions], expected, f"through {mode}")


def test_actions_are_within_float64_bounds() -> None:
    space, actions = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float64), []

    def make() -> gymnasium.Env:
        pendulum = gymnasium.make("Pendulum-v1")
        return gymnasium.wrappers.TransformAction(
            pendulum, lambda action: actions.append(action.copy()) or action, space
        )

    env = ExternalVecEnv(GymnasiumVector(SyncVectorEnv([make])))
    env.reset(0)
    env.step(torch.tensor([[9.0]]))
    assert space.contains(actions[0]), f"{actions[0].dtype} {actions[0][0]:.12f}, the float32 number nearest to 0.1"


def test_same_step_reads_final_obs_and_metrics_from_info() -> None:
    class WithAngle(gymnasium.Wrapper):
        def step(self, action):
            *rest, info = self.env.step(action)
            return *rest, {**info, "angle": float(rest[0][2])}

    for mode in MODES:
        makes = [lambda: WithAngle(gymnasium.make("CartPole-v1"))] * 4
        env = ExternalVecEnv(GymnasiumVector(SyncVectorEnv(makes, autoreset_mode=mode)), episode_metrics=("angle",))
        _, played, _ = play(env, 0, 60)
        ends = [step for step in played if step.ended.any()]
        assert len(ends) > 3
        for step in ends:
            assert torch.allclose(step.final_obs[step.ended, 2], step.episode["angle"][step.ended])
            assert bool(
                (step.final_obs[step.ended, 2].abs() > 0.2).all() | (step.final_obs[step.ended, 0].abs() > 2.4).all()
            )


class Rigid(VectorEnv):
    """A native vector environment that steps all rows together and ignores reset masks."""

    def __init__(self, mode: AutoresetMode) -> None:
        inner = SyncVectorEnv([functools.partial(gymnasium.make, "CartPole-v1")] * 3)
        self.inner, self.num_envs = inner, 3
        self.single_observation_space, self.single_action_space = (
            inner.single_observation_space,
            inner.single_action_space,
        )
        self.metadata = {"autoreset_mode": mode}

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed)

    def step(self, actions):
        return self.inner.step(actions)


def test_unsupported_vectors_are_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match="NEXT_STEP.*cannot reset one environment alone.*SAME_STEP or DISABLED"):
        GymnasiumVector(Rigid(AutoresetMode.NEXT_STEP))
    with pytest.raises(ValueError, match="autoreset mode None"):
        GymnasiumVector(Rigid(None))
    makes = [functools.partial(gymnasium.make, "CartPole-v1")] * 2
    vector = AsyncVectorEnv(makes, shared_memory=False)
    with pytest.raises(ValueError, match="shared_memory=True"):
        GymnasiumVector(vector)
    vector.close()
    env = ExternalVecEnv(GymnasiumVector(Rigid(AutoresetMode.DISABLED)))
    with pytest.raises(ValueError, match="also changed others"):
        play(env, 0, 100)
    pool = NextStepPool([0, 1])
    pool.is_async = True
    with pytest.raises(ValueError, match="batch_size=num_envs"):
        EnvPoolVector(lambda seeds: pool, 2)


def test_the_pool_without_the_adapter_returns_invalid_transitions() -> None:
    """Without the adapter, the fake pool reports its reward of 1000 for steps that ignore the action."""
    pool = NextStepPool([0, 1, 2])
    pool.async_reset()
    pool.recv()
    rewards = []
    for _ in range(30):
        pool.send(np.zeros(3, np.int64), np.arange(3))
        rewards.append(pool.recv()[1])
    assert np.max(rewards) == 1000.0


@pytest.mark.parametrize("mode", MODES)
def test_tuples_are_observed_by_position(mode: AutoresetMode) -> None:
    makes = [functools.partial(gymnasium.make, "Blackjack-v1", disable_env_checker=True)] * 3
    env = ExternalVecEnv(GymnasiumVector(SyncVectorEnv(makes, autoreset_mode=mode)))
    _, steps, _ = play(env, 0, 20)
    ended = [step for step in steps if step.final_obs is not None]
    assert ended and all(set(step.obs) == set(step.final_obs) == {"0", "1", "2"} for step in ended)
