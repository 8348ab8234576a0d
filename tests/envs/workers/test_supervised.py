"""Supervision: each failure of a simulator is described and repaired, and no other row loses a step."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from envs.workers.faulty import (
    FAULTS,
    Chained,
    Counting,
    FailsToLoadOnce,
    LoadsOnce,
    NeverResetsAgain,
    Numbered,
    Slow,
    SlowToLoad,
    SlowToReset,
    StartsAProgram,
)
from powerband.core.errors import ConfigError
from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec
from powerband.envs.workers.group import NO_ROW, EnvError
from powerband.envs.workers.obs_slots import write_obs
from powerband.envs.workers.seeds import episode_seed
from powerband.envs.workers.spaces import Spaces
from powerband.envs.workers.supervision import EnvFailure, Supervision, reproduce_failure
from powerband.envs.workers.vector import WorkerVecEnv

DESCRIPTIONS = {
    "raises": ("raised", "RuntimeError: the gripper broke"),
    "exits": ("died", "exited with code 3"),
    "is killed": ("died", "was killed by SIGKILL"),
    "hangs": ("hung", "did not answer for 0.3 s"),
    "not finite": ("raised", "observation () has values that are not finite"),
    "reward not finite": ("raised", "reward is nan"),
    "wrong shape": ("raised", "has shape (4,), but its space has (3,)"),
    "wrong dtype": ("raised", "observation () is complex128, which cannot be stored as float32"),
}


def vector(
    num_envs: int, num_workers: int, failures: list[EnvFailure] | None = None, deadline_s=5.0, **options
) -> WorkerVecEnv:
    """Supervised `Chained` environments that append their failures to a list."""
    on_failure = (failures if failures is not None else []).append
    supervision = Supervision(deadline_s=deadline_s, max_failures=10_000)
    return WorkerVecEnv(
        [(Chained, options)] * num_envs, num_workers=num_workers, supervision=supervision, on_failure=on_failure
    )


def of_rows(failures: list[EnvFailure]) -> list[EnvFailure]:
    """Failures that lost a step. On a busy machine an idle worker may exceed its deadline, which loses nothing."""
    return [failure for failure in failures if failure.env_id is not None]


def play_and_check(env: WorkerVecEnv, steps: int, seed: int = 3) -> tuple[int, int]:
    """Steps with random actions, and checks every transition and reset; observations identify their environment.

    Returns:
        Number of real transitions, and number of lost rows.
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
def test_each_failure_is_described_and_other_rows_lose_nothing(fault: str) -> None:
    failures: list[EnvFailure] = []
    env = vector(5, 2, failures, deadline_s=0.3 if fault == "hangs" else 5.0, rare=150, faults=(fault,))
    real, lost = play_and_check(env, 60)
    env.close()
    failures = of_rows(failures)
    assert lost == len(failures) > 0 and real == 5 * 60 - lost
    kind, description = DESCRIPTIONS[fault]
    for each in failures:
        assert each.kind == kind and description in each.description and description in str(each)
        assert f"environment {each.env_id}" in str(each) and each.recovery_s < 5
        assert each.seed == episode_seed(3, each.env_id, each.episode) and len(each.actions) == each.step + 1
        assert each.worker == (0 if each.env_id < 2 else 1)
    if kind == "raised":
        assert ("Traceback" in failures[0].trace) and env.failures.counts == {"raised": lost}


def test_a_failure_can_be_reproduced() -> None:
    failures: list[EnvFailure] = []
    env = vector(2, 0, failures, rare=40, faults=("raises",))
    play_and_check(env, 40)
    with pytest.raises(RuntimeError, match="the gripper broke"):
        reproduce_failure(Chained, failures[0], rare=40, faults=("raises",))


def test_a_reproduced_episode_has_the_actions_of_the_environment() -> None:
    class OneOrTwo(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2, start=1)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return np.zeros(1, np.float32), {}

        def step(self, action: int) -> int:
            assert self.action_space.contains(action)
            return action

    failure = EnvFailure(0, 0, "raised", "", seed=1, actions=np.array([0, 1, 1]))
    assert reproduce_failure(OneOrTwo, failure) == 2


@pytest.mark.parametrize(("num_workers", "fault"), [(0, "raises"), (1, "exits")])
def test_a_restarted_environment_continues_with_the_next_episode(num_workers: int, fault: str) -> None:
    options = {"fault": fault, "step": 3, "length": 4}
    env = WorkerVecEnv([(Numbered, options)], num_workers=num_workers, supervision=Supervision(), on_failure=[].append)
    try:
        numbers = [float(env.reset(0))]
        numbers += [float(env.step(torch.zeros(1, 1)).obs) for _ in range(7)]
    finally:
        env.close()
    assert numbers == [0, 0, 0, 1, 1, 1, 2, 2]


def test_all_kinds_of_failures_together() -> None:
    failures: list[EnvFailure] = []
    env = vector(6, 3, failures, deadline_s=1.0, rare=200)
    real, lost = play_and_check(env, 200)
    env.close()
    assert {failure.kind for failure in failures} == {"raised", "died", "hung"}
    assert lost == len(of_rows(failures)) > 3 and real + lost == 6 * 200


def test_a_failure_is_reported_even_if_its_worker_dies_in_the_same_step() -> None:
    failures: list[EnvFailure] = []
    env_fns = [(Counting, {"fault": fault, "step": 5}) for fault in ("raises", "is killed", "")]
    env = WorkerVecEnv(env_fns, num_workers=1, supervision=Supervision(deadline_s=5.0), on_failure=failures.append)
    env.reset(0)
    lost = [env.step(torch.zeros(3, 1)).lost for _ in range(5)]
    env.close()
    assert lost[:4] == [None] * 4 and lost[4].tolist() == [True, True, False]
    assert sorted((failure.env_id, failure.kind) for failure in failures) == [(0, "raised"), (1, "died")]


def test_an_idle_worker_that_is_killed_is_restarted_and_no_row_is_lost() -> None:
    failures: list[EnvFailure] = []
    env = vector(4, 2, failures)
    obs = env.reset(3).clone()
    for number in range(30):
        if number == 20:
            env._workers[1].process.kill()
        action = torch.full((4, 1), 0.5)
        step = env.step(action)
        assert step.lost is None
        assert torch.equal(step.obs, obs + torch.tensor([0.0, 1.0, 0.5]))
        obs = step.obs.clone()
    assert [(failure.kind, failure.env_id, failure.worker) for failure in failures] == [("died", None, 1)]
    assert "no episode was lost" in str(failures[0])
    env.close()


def test_a_slow_step_is_not_a_failure() -> None:
    failures: list[EnvFailure] = []
    env = WorkerVecEnv(
        [(Slow, {})] * 2, num_workers=2, supervision=Supervision(deadline_s=2.0), on_failure=failures.append
    )
    env.reset(0)
    for _ in range(3):
        env.step(torch.zeros(2, 1))
    env.close()
    assert not failures


def test_workers_that_hang_together_have_one_deadline() -> None:
    failures: list[EnvFailure] = []
    env = WorkerVecEnv(
        [(Counting, {"fault": "hangs", "step": 3})] * 6,
        num_workers=6,
        supervision=Supervision(deadline_s=3.0, max_failures=100),
        on_failure=failures.append,
    )
    env.reset(0)
    for _ in range(2):
        env.step(torch.zeros(6, 1))
    start = time.monotonic()
    env.step(torch.zeros(6, 1))
    assert len(failures) == 6 and {failure.kind for failure in failures} == {"hung"}
    waited = time.monotonic() - start - sum(failure.recovery_s for failure in failures)
    env.close()
    assert waited < 6.0  # 18 seconds one after another


def test_a_restart_may_take_longer_than_a_step() -> None:
    failures: list[EnvFailure] = []
    options = {"rare": 15, "faults": ("is killed",)}
    supervision = Supervision(deadline_s=0.5)
    env = WorkerVecEnv([(SlowToLoad, options)] * 2, num_workers=2, supervision=supervision, on_failure=failures.append)
    _, lost = play_and_check(env, 20)
    env.close()
    assert lost == len(failures) > 0 and {failure.kind for failure in failures} == {"died"}


def test_a_worker_that_cannot_create_its_environments_again_is_restarted_again(tmp_path: Path) -> None:
    failures: list[EnvFailure] = []
    token = tmp_path / "token"
    env_fns = [(FailsToLoadOnce, {"token": str(token)}), (Counting, {"fault": "is killed", "step": 3, "length": 100})]
    env = WorkerVecEnv(env_fns, num_workers=1, supervision=Supervision(), on_failure=failures.append)
    env.reset(0)
    token.touch()
    lost = [env.step(torch.zeros(2, 1)).lost for _ in range(3)]
    env.close()
    assert lost[:2] == [None, None] and lost[2].tolist() == [False, True], "the row that was stepping, not the first"
    assert [(failure.kind, failure.env_id) for failure in failures] == [("died", 1), ("raised", None)]
    assert "could not create its environments" in str(failures[1]) and "no display" in failures[1].trace


def test_an_episode_that_does_not_repeat_itself_is_truncated_after_a_restart() -> None:
    failures: list[EnvFailure] = []
    env_fns = [(Counting, {"fault": fault, "length": 100}) for fault in ("", "forgets its seed")]
    env = WorkerVecEnv(env_fns, num_workers=1, supervision=Supervision(), on_failure=failures.append)
    env.reset(0)
    env.step(torch.zeros(2, 1))
    env._workers[0].process.kill()
    step = env.step(torch.zeros(2, 1))
    assert step.lost.tolist() == [False, True] and step.obs[0].tolist() == [2.5]
    assert sorted((failure.kind, failure.env_id) for failure in failures if failure.env_id is not None) == [
        ("not restored", 1)
    ]
    env.close()


def test_too_many_failures_end_the_run_and_leave_no_process() -> None:
    env = WorkerVecEnv(
        [(Chained, {"rare": 1, "faults": ("raises", "exits")})] * 2,
        num_workers=2,
        supervision=Supervision(max_failures=5),
    )
    env.reset(0)
    with pytest.raises(
        EnvError, match="Environments failed 5 times within .* too often to continue.*The last failure: environment"
    ):
        for _ in range(20):
            env.step(torch.zeros(2, 1))
    pids = [worker.process.pid for worker in env._workers]
    env.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_lost_rows_reach_neither_the_replay_nor_the_metrics() -> None:
    failures: list[EnvFailure] = []
    env = vector(4, 0, failures, rare=30, faults=("raises",))
    fields = {"obs": env.spec.obs, "next_obs": env.spec.obs, "action": TensorSpec((1,))}
    replay, tracker = Replay(1000, 4, "cpu", fields), EpisodeTracker(4, None, "cpu")
    obs = env.reset(3).clone()
    for _ in range(100):
        action = torch.full((4, 1), 0.25)
        step = env.step(action)
        replay.add({"obs": obs, "next_obs": step.next_obs(), "action": action}, step.lost)
        tracker.add(step)
        obs = step.obs.clone()
    assert len(replay) == 400 - len(failures) < 400
    stored = replay.stored
    assert torch.equal(stored["next_obs"], stored["obs"] + torch.tensor([0.0, 1.0, 0.25]))
    complete = sum(int(episode) for episode in env.state_dict()["episode"]) - len(failures)
    assert int(tracker.ended) == complete


def test_invalid_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="deadline_s=0 is not above 0. Write deadline_s=60"):
        Supervision(deadline_s=0)


def test_a_reset_may_take_longer_than_a_step() -> None:
    env = WorkerVecEnv([(SlowToReset, {})], num_workers=1, supervision=Supervision(deadline_s=0.3))
    env.reset(0)
    assert env._shared_arrays.arrays["active_row"].tolist() == [NO_ROW]
    env.step(torch.zeros(1, 1))
    state = env.state_dict()
    env.load_state_dict(state)
    assert env.resumed.all() and env._shared_arrays.arrays["active_row"].tolist() == [NO_ROW]
    env.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_invalid_settings_in_a_reset_are_refused_and_not_repaired(num_workers: int) -> None:
    env_fn = (NeverResetsAgain, {"error": ConfigError, "length": 2})
    env = WorkerVecEnv([env_fn], num_workers=num_workers, supervision=Supervision())
    env.reset(0)
    env.step(torch.zeros(1, 1))
    with pytest.raises(ConfigError, match="^scene=kitchen is unknown. Write scene=office.$"):
        env.step(torch.zeros(1, 1))
    env.close()


def test_the_failure_of_a_reset_names_no_actions_of_the_episode_before() -> None:
    failures: list[EnvFailure] = []
    env_fn = (NeverResetsAgain, {"error": RuntimeError, "length": 2})
    env = WorkerVecEnv([env_fn], num_workers=0, supervision=Supervision(), on_failure=failures.append)
    env.reset(0)
    for _ in range(2):
        step = env.step(torch.zeros(1, 1))
    assert step.lost.tolist() == [True] and "in the reset after an episode" in failures[0].description
    assert (failures[0].episode, failures[0].step, len(failures[0].actions)) == (1, 0, 0)
    assert failures[0].seed == episode_seed(0, 0, 1)


def test_the_repetition_of_episodes_after_a_restart_may_take_longer_than_a_step() -> None:
    failures: list[EnvFailure] = []
    limits = Supervision(deadline_s=0.8)
    env = WorkerVecEnv([(Slow, {})], num_workers=1, supervision=limits, on_failure=failures.append)
    env.reset(0)
    for _ in range(3):
        env.step(torch.zeros(1, 1))
    os.kill(env._workers[0].process.pid, signal.SIGKILL)
    step = env.step(torch.zeros(1, 1))
    assert step.lost is None and step.obs[0, 1] == 4 and len(failures) == 1
    env.close()


def test_a_program_of_a_simulator_ends_by_a_signal_and_has_the_python_path_of_the_user(monkeypatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    env = WorkerVecEnv([StartsAProgram], num_workers=1)
    assert float(env.reset(0)) == 0.0
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 2


def test_a_worker_that_cannot_start_again_ends_the_run(tmp_path: Path) -> None:
    failures: list[EnvFailure] = []
    supervision = Supervision(max_failures=50, window_s=0.5)
    kwargs = {"file": str(tmp_path / "loaded")}
    env = WorkerVecEnv([(LoadsOnce, kwargs)], num_workers=1, supervision=supervision, on_failure=failures.append)
    try:
        env.reset(0)
        with pytest.raises(EnvError, match="the license is in use"):
            env.step(torch.zeros(1, 1))
    finally:
        env.close()
    assert len(failures) == 5


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32), np.array([1e300]), "not finite as float32"),
        (gymnasium.spaces.Box(0, 255, (1,), np.uint8), np.array([300]), "values that uint8 cannot hold"),
    ],
)
def test_observations_that_cannot_be_stored_are_failures(space, obs, message) -> None:
    slot = ((), np.zeros((1, *space.shape), space.dtype), space.shape, 0)
    with pytest.raises(ValueError, match=message):
        write_obs([slot], 0, obs, check_finite=True)


def test_a_tuple_observation_may_be_a_list_and_keys_with_a_slash_are_refused() -> None:
    array = np.zeros((1, 1), np.float32)
    write_obs([(("0",), array, (1,), 0)], 0, [np.ones(1)], check_finite=True)
    assert array[0, 0] == 1
    box = gymnasium.spaces.Box(-1, 1, (1,))
    space = gymnasium.spaces.Dict({"a/b": box, "a": gymnasium.spaces.Dict({"b": box})})
    with pytest.raises(ConfigError, match="the key 'a/b'"):
        Spaces.from_spaces(space, gymnasium.spaces.Discrete(2), num_agents=None, max_episode_steps=None)
