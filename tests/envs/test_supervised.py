"""Simulators that fail in every way: each failure is named and recovered from, and no other row loses a step."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from envs.faulty import FAULTS, Chained, Counting
from powerband.data.episodes import EpisodeTracker
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec
from powerband.envs.group import EnvError
from powerband.envs.seeds import episode_seed
from powerband.envs.supervision import Fault, Supervision, reproduce
from powerband.envs.vector import WorkerVecEnv

NAMED = {
    "raises": ("raised", "RuntimeError: the gripper broke"),
    "exits": ("died", "exited with code 3"),
    "is killed": ("died", "was killed by SIGKILL"),
    "hangs": ("hung", "did not answer for 0.3 s"),
    "not finite": ("raised", "observation () holds what is not finite"),
    "reward not finite": ("raised", "reward is nan"),
    "wrong shape": ("raised", "has shape (4,), its space says (3,)"),
    "wrong dtype": ("raised", "observation () is complex128, which does not go into float32"),
}


def vector(num_envs: int, num_workers: int, told: list[Fault] | None = None, deadline_s=5.0, **words) -> WorkerVecEnv:
    tell = (told if told is not None else []).append
    patience = Supervision(deadline_s=deadline_s, most=10_000)
    return WorkerVecEnv([(Chained, words)] * num_envs, num_workers=num_workers, supervision=patience, tell=tell)


def of_rows(told: list[Fault]) -> list[Fault]:
    """On a busy machine a worker between two environments may be taken for hanging too, which loses nothing."""
    return [fault for fault in told if fault.env_id is not None]


def played(env: WorkerVecEnv, steps: int, seed: int = 3) -> tuple[int, int]:
    """Plays, and checks every transition and every reset by what they show of whose they are.

    Returns:
        Transitions that were real, and rows that were lost.
    """
    rows, real, lost_rows = env.num_envs, 0, 0
    episode = np.zeros(rows, dtype=int)
    obs = env.reset(seed).clone()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        action = torch.rand(rows, 1, generator=generator) * 2 - 1
        step = env.step(action)
        lost = torch.zeros(rows, dtype=torch.bool) if step.lost is None else step.lost
        kept = ~lost
        expected = obs + torch.cat([torch.zeros(rows, 1), torch.ones(rows, 1), action], 1)
        torch.testing.assert_close(step.next_obs()[kept], expected[kept], atol=1e-4, rtol=0)
        torch.testing.assert_close(step.reward[kept], expected[kept, 2] / 2, atol=1e-4, rtol=0)
        assert step.truncated[lost].all() and not step.terminated[lost].any()
        assert step.truncated[kept].equal(expected[kept, 1] == 50)
        for row in step.ended.nonzero().squeeze(1).tolist():
            episode[row] += 1
            assert step.obs[row].tolist() == [episode_seed(seed, row, int(episode[row])) % 65_536, 0, 0]
        assert step.obs[:, 0].tolist() == [episode_seed(seed, row, int(episode[row])) % 65_536 for row in range(rows)]
        real, lost_rows = real + int(kept.sum()), lost_rows + int(lost.sum())
        obs = step.obs.clone()
    return real, lost_rows


@pytest.mark.parametrize("fault", FAULTS)
def test_each_failure_is_named_and_the_others_lose_nothing(fault: str) -> None:
    told: list[Fault] = []
    env = vector(5, 2, told, deadline_s=0.3 if fault == "hangs" else 5.0, rare=150, faults=(fault,))
    real, lost = played(env, 60)
    env.close()
    told = of_rows(told)
    assert lost == len(told) > 0 and real == 5 * 60 - lost
    kind, what = NAMED[fault]
    for each in told:
        assert each.kind == kind and what in each.what and what in str(each)
        assert f"environment {each.env_id}" in str(each) and each.recovery_s < 5
        assert each.seed == episode_seed(3, each.env_id, each.episode) and len(each.actions) == each.step + 1
        assert each.worker == (0 if each.env_id < 2 else 1)
    if kind == "raised":
        assert ("Traceback" in told[0].trace) and env.record.counts == {"raised": lost}


def test_a_failure_can_be_reproduced() -> None:
    told: list[Fault] = []
    env = vector(2, 0, told, rare=40, faults=("raises",))
    played(env, 40)
    with pytest.raises(RuntimeError, match="the gripper broke"):
        reproduce(Chained, told[0], rare=40, faults=("raises",))


def test_all_failures_mixed_over_and_over() -> None:
    told: list[Fault] = []
    env = vector(6, 3, told, deadline_s=1.0, rare=200)
    real, lost = played(env, 200)
    env.close()
    assert {fault.kind for fault in told} == {"raised", "died", "hung"}
    assert lost == len(of_rows(told)) > 3 and real + lost == 6 * 200


def test_a_failure_is_told_though_its_worker_dies_in_the_same_step() -> None:
    told: list[Fault] = []
    makes = [(Counting, {"fault": fault, "step": 5}) for fault in ("raises", "is killed", "")]
    env = WorkerVecEnv(makes, num_workers=1, supervision=Supervision(deadline_s=5.0), tell=told.append)
    env.reset(0)
    lost = [env.step(torch.zeros(3, 1)).lost for _ in range(5)]
    env.close()
    assert lost[:4] == [None] * 4 and lost[4].tolist() == [True, True, False]
    assert sorted((fault.env_id, fault.kind) for fault in told) == [(0, "raised"), (1, "died")]


def test_a_worker_killed_at_rest_is_started_again_and_no_row_is_lost() -> None:
    told: list[Fault] = []
    env = vector(4, 2, told)
    obs = env.reset(3).clone()
    for number in range(30):
        if number == 20:
            env._workers[1].process.kill()
        action = torch.full((4, 1), 0.5)
        step = env.step(action)
        assert step.lost is None
        assert torch.equal(step.obs, obs + torch.tensor([0.0, 1.0, 0.5]))
        obs = step.obs.clone()
    assert [(fault.kind, fault.env_id, fault.worker) for fault in told] == [("died", None, 1)]
    assert "nothing was lost" in str(told[0])
    env.close()


def test_slow_is_not_hung() -> None:
    told: list[Fault] = []
    env = WorkerVecEnv([(Slow, {})] * 2, num_workers=2, supervision=Supervision(deadline_s=2.0), tell=told.append)
    env.reset(0)
    for _ in range(3):
        env.step(torch.zeros(2, 1))
    env.close()
    assert not told


def test_a_simulator_may_load_for_longer_than_a_step_may_take() -> None:
    told: list[Fault] = []
    words = {"rare": 15, "faults": ("is killed",)}
    patience = Supervision(deadline_s=1.0)
    env = WorkerVecEnv([(SlowToLoad, words)] * 2, num_workers=2, supervision=patience, tell=told.append)
    _, lost = played(env, 20)
    env.close()
    assert lost == len(told) > 0 and {fault.kind for fault in told} == {"died"}


class SlowToLoad(Chained):
    def __init__(self, **words) -> None:
        time.sleep(1.3)
        super().__init__(**words)


class Slow(Chained):
    def step(self, action: np.ndarray):
        time.sleep(0.3)
        return super().step(action)


def test_an_episode_that_does_not_repeat_itself_is_cut_when_its_worker_is_gone() -> None:
    told: list[Fault] = []
    makes = [(Counting, {"fault": fault, "length": 100}) for fault in ("", "forgets its seed")]
    env = WorkerVecEnv(makes, num_workers=1, supervision=Supervision(), tell=told.append)
    env.reset(0)
    env.step(torch.zeros(2, 1))
    env._workers[0].process.kill()
    step = env.step(torch.zeros(2, 1))
    assert step.lost.tolist() == [False, True] and step.obs[0].tolist() == [2.5]
    assert sorted((fault.kind, fault.env_id) for fault in told if fault.env_id is not None) == [("not restored", 1)]
    env.close()


def test_a_storm_of_failures_ends_the_run_and_leaves_no_process() -> None:
    env = WorkerVecEnv(
        [(Chained, {"rare": 1, "faults": ("raises", "exits")})] * 2, num_workers=2, supervision=Supervision(most=5)
    )
    env.reset(0)
    with pytest.raises(EnvError, match="5 failures of environments in .* no accident. The last: environment"):
        for _ in range(20):
            env.step(torch.zeros(2, 1))
    pids = [worker.process.pid for worker in env._workers]
    env.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_lost_rows_reach_neither_the_replay_nor_the_figures() -> None:
    told: list[Fault] = []
    env = vector(4, 0, told, rare=30, faults=("raises",))
    fields = {"obs": env.spec.obs, "next_obs": env.spec.obs, "action": TensorSpec((1,))}
    replay, tracker = Replay(1000, 4, "cpu", fields), EpisodeTracker(4, None, "cpu")
    obs = env.reset(3).clone()
    for _ in range(100):
        action = torch.full((4, 1), 0.25)
        step = env.step(action)
        replay.add({"obs": obs, "next_obs": step.next_obs(), "action": action}, step.lost)
        tracker.add(step)
        obs = step.obs.clone()
    assert len(replay) == 400 - len(told) < 400
    held = replay.held
    assert torch.equal(held["next_obs"], held["obs"] + torch.tensor([0.0, 1.0, 0.25]))
    whole = sum(int(episode) for episode in env.state_dict()["episode"]) - len(told)
    assert int(tracker.ended) == whole


def test_bad_patience_is_refused() -> None:
    with pytest.raises(ValueError, match="deadline_s=0 is not above 0. Write deadline_s=60"):
        Supervision(deadline_s=0)
