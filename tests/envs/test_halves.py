"""Two halves of the workers stepped by turns: each row sees what it would see if all were stepped together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from envs.faulty import Chained
from powerband.data.types import Step
from powerband.envs.gymnasium_env import GymVecEnv
from powerband.envs.seeds import episode_seed
from powerband.envs.supervision import Fault, Supervision
from powerband.envs.vector import WorkerVecEnv

ROWS, STEPS = 5, 60


def vector(told: list[Fault], workers: int = 3, **words) -> WorkerVecEnv:
    patience = Supervision(deadline_s=1.0, most=10_000)
    return WorkerVecEnv([(Chained, words)] * ROWS, num_workers=workers, supervision=patience, tell=told.append)


def by_turns(env: WorkerVecEnv, actions: Tensor) -> list[Step]:
    """Steps with `actions` (T, N, ...): a half gets its next ones while the other still works."""
    arrived: list[list[Step]] = []
    for half in env.halves:
        half.send(actions[0, half.rows])
    for t in range(len(actions)):
        arrived.append([])
        for half in env.halves:
            arrived[t].append(half.recv())
            if t + 1 < len(actions):
                half.send(actions[t + 1, half.rows])
    return [Step.joined(parts) for parts in arrived]


def drawn() -> Tensor:
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


def test_by_turns_every_row_goes_the_same_way() -> None:
    actions, steps = drawn(), []
    for turns in (False, True):
        env = vector([])
        env.reset(3)
        steps.append(by_turns(env, actions) if turns else [env.step(action) for action in actions])
        env.close()
    for together, turned in zip(*steps, strict=True):
        assert (together.final_obs is None) == (turned.final_obs is None) and turned.lost is None
        for name in ("obs", "reward", "terminated", "truncated"):
            assert torch.equal(getattr(together, name), getattr(turned, name))
        assert torch.equal(together.next_obs(), turned.next_obs())


def test_a_failure_in_one_half_loses_nothing_of_the_other() -> None:
    told: list[Fault] = []
    env, actions = vector(told, rare=60), drawn()
    obs, episode, lost_rows = env.reset(3).clone(), [0] * ROWS, 0
    for step, action in zip(by_turns(env, actions), actions, strict=True):
        lost = torch.zeros(ROWS, dtype=torch.bool) if step.lost is None else step.lost
        expected = obs + torch.cat([torch.zeros(ROWS, 1), torch.ones(ROWS, 1), action], 1)
        torch.testing.assert_close(step.next_obs()[~lost], expected[~lost], atol=1e-4, rtol=0)
        lost_rows += int(lost.sum())
        for row in step.ended.nonzero().squeeze(1).tolist():
            episode[row] += 1
        assert step.obs[:, 0].tolist() == [episode_seed(3, row, episode[row]) % 65_536 for row in range(ROWS)]
        obs = step.obs.clone()
    env.close()
    assert lost_rows == len([fault for fault in told if fault.env_id is not None]) > 2
    assert len({fault.worker for fault in told}) > 1


def test_what_is_asked_at_the_wrong_time_is_refused() -> None:
    env = GymVecEnv("Pendulum-v1", 2, 2)
    first, second = env.halves
    env.reset(0)
    first.send(torch.zeros(1, 1))
    for call in (lambda: first.send(torch.zeros(1, 1)), lambda: env.send(torch.zeros(2, 1)), second.recv, env.recv):
        with pytest.raises(AssertionError, match="without"):
            call()
    for call in (env.reset, env.state_dict, env.facts):
        with pytest.raises(AssertionError, match="between send and recv"):
            call()
    with pytest.raises(ValueError, match=r"\(2, 1\), the environments take \(1, 1\)"):
        second.send(torch.zeros(2, 1))
    first.recv()
    assert env.step(torch.zeros(2, 1)).obs.shape == (2, 3)
    env.close()
