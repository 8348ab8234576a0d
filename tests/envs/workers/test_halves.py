"""Halves of the workers, stepped in turn: every row has the same transitions as if all were stepped together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from envs.workers.faulty import Chained
from powerband.data.types import Step
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.workers.seeds import episode_seed
from powerband.envs.workers.supervision import EnvFailure, Supervision
from powerband.envs.workers.vector import WorkerVecEnv

ROWS, STEPS = 5, 60


def vector(failures: list[EnvFailure], workers: int = 3, **options) -> WorkerVecEnv:
    supervision = Supervision(deadline_s=1.0, max_failures=10_000)
    return WorkerVecEnv(
        [(Chained, options)] * ROWS, num_workers=workers, supervision=supervision, on_failure=failures.append
    )


def double_buffer(env: WorkerVecEnv, actions: Tensor) -> list[Step]:
    """Steps with `actions` (T, N, ...): one half receives its next actions while the other half steps."""
    arrived: list[list[Step]] = []
    for half in env.halves:
        half.send(actions[0, half.rows])
    for t in range(len(actions)):
        arrived.append([])
        for half in env.halves:
            arrived[t].append(half.recv())
            if t + 1 < len(actions):
                half.send(actions[t + 1, half.rows])
    return [Step.concatenate(parts) for parts in arrived]


def random_actions() -> Tensor:
    return torch.rand(STEPS, ROWS, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_halves_cover_the_rows_once() -> None:
    env = vector([])
    assert [half.rows for half in env.halves] == [slice(0, 1), slice(1, 5)]  # one worker of three, and two
    assert [half.num_envs for half in env.halves] == [1, 4]
    env.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_one_worker_has_no_halves(workers: int) -> None:
    env = vector([], workers)
    assert env.halves == ()
    env.close()


def test_double_buffering_changes_no_transition() -> None:
    actions, steps = random_actions(), []
    for double_buffered in (False, True):
        env = vector([])
        env.reset(3)
        steps.append(double_buffer(env, actions) if double_buffered else [env.step(action) for action in actions])
        env.close()
    for together, halves in zip(*steps, strict=True):
        assert (together.final_obs is None) == (halves.final_obs is None) and halves.lost is None
        for name in ("obs", "reward", "terminated", "truncated"):
            assert torch.equal(getattr(together, name), getattr(halves, name))
        assert torch.equal(together.next_obs(), halves.next_obs())


def test_a_failure_in_one_half_loses_nothing_in_the_other() -> None:
    failures: list[EnvFailure] = []
    env, actions = vector(failures, rare=60), random_actions()
    obs, episode, lost_rows = env.reset(3).clone(), [0] * ROWS, 0
    for step, action in zip(double_buffer(env, actions), actions, strict=True):
        lost = torch.zeros(ROWS, dtype=torch.bool) if step.lost is None else step.lost
        expected = obs + torch.cat([torch.zeros(ROWS, 1), torch.ones(ROWS, 1), action], 1)
        torch.testing.assert_close(step.next_obs()[~lost], expected[~lost], atol=1e-4, rtol=0)
        lost_rows += int(lost.sum())
        for row in step.ended.nonzero().squeeze(1).tolist():
            episode[row] += 1
        assert step.obs[:, 0].tolist() == [episode_seed(3, row, episode[row]) % 65_536 for row in range(ROWS)]
        obs = step.obs.clone()
    env.close()
    assert lost_rows == len([failure for failure in failures if failure.env_id is not None]) > 2
    assert len({failure.worker for failure in failures}) > 1


def test_calls_out_of_order_are_refused() -> None:
    env = GymVecEnv("Pendulum-v1", 2, 2)
    first, second = env.halves
    env.reset(0)
    first.send(torch.zeros(1, 1))
    for call in (lambda: first.send(torch.zeros(1, 1)), lambda: env.send(torch.zeros(2, 1)), second.recv, env.recv):
        with pytest.raises(AssertionError, match="without"):
            call()
    for call in (env.reset, env.state_dict, env.worker_statistics):
        with pytest.raises(AssertionError, match="between send and recv"):
            call()
    with pytest.raises(ValueError, match=r"\(2, 1\), but these environments need \(1, 1\)"):
        second.send(torch.zeros(2, 1))
    first.recv()
    assert env.step(torch.zeros(2, 1)).obs.shape == (2, 3)
    env.close()
