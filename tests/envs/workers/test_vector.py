"""WorkerVecEnv: results, descriptions of failures, and processes that always end."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete

from contract.contract import assert_same, play
from contract.fakes import Sites
from envs.workers.faulty import Counting, refuses
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.workers import processes
from powerband.envs.workers.group import EnvError
from powerband.envs.workers.seeds import episode_seed
from powerband.envs.workers.vector import WorkerVecEnv

SEEDS = [297876190, 395924418, 577952960, 1489305978]
"""episode_seed of (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0): another value would break every saved run."""


def counting(num_workers: int, faults: list[str], **options) -> WorkerVecEnv:
    return WorkerVecEnv([(Counting, {"fault": fault}) for fault in faults], num_workers=num_workers, **options)


def has_ended(pid: int) -> bool:
    """True if the process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def script(folder: Path, text: str) -> subprocess.Popen:
    """Runs `text` as a user's script with its imports."""
    imports = """
        import torch
        from envs.workers.faulty import Counting
        from powerband.envs.workers.vector import WorkerVecEnv
    """
    path = folder / "script.py"
    path.write_text(textwrap.dedent(imports) + textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen([sys.executable, path], **pipes, text=True, env=environment)


def test_the_number_of_workers_changes_no_transition() -> None:
    trajectories = []
    for num_workers in (0, 1, 3):
        env = WorkerVecEnv([Sites] * 5, num_workers=num_workers)
        trajectories.append(play(env, 3, 40)[1])
        assert env.spec.overlappable == (num_workers > 0)
        env.close()
    assert_same(trajectories[0], trajectories[1], "with 1 worker")
    assert_same(trajectories[0], trajectories[2], "with 3 workers of unequal shares")


def test_dtypes_and_reserved_keys() -> None:
    env = WorkerVecEnv([Sites] * 2, num_workers=0)
    spec, obs = env.spec, env.reset(0)
    assert spec.obs["extra"]["image"].dtype == torch.uint8 and obs["extra"]["image"].dtype == torch.uint8
    assert spec.obs["action_mask"].dtype == torch.bool
    assert spec.obs["extra"]["step"].dtype == torch.int64 and obs["extra"]["step"].tolist() == [0, 0], "counted from 0"
    assert (spec.num_agents, spec.num_actions, spec.action.shape, spec.max_episode_steps) == (3, 5, (3,), 12)


def test_worker_processes_are_small_and_single_threaded_and_float64_becomes_float32() -> None:
    env = counting(2, [""] * 4, episode_metrics=("torch", "threads"))
    env.reset(0)
    for _ in range(8):
        step = env.step(torch.zeros(4, 1))
    assert step.truncated.all() and not step.terminated.any()
    assert step.episode["torch"].tolist() == [0.0] * 4, "a worker imported torch, which costs seconds and memory"
    assert step.episode["threads"].tolist() == [1.0] * 4
    assert step.obs.dtype == torch.float32 and step.obs.tolist() == [[0.0]] * 4
    assert step.final_obs.tolist() == [[8.5]] * 4
    env.close()


def test_actions_are_clipped_to_the_bounds_and_their_shape_is_checked() -> None:
    env = counting(0, ["", ""])
    env.reset(0)
    assert env.step(torch.tensor([[9.0], [-1.5]])).reward.tolist() == [2.0, -1.5]
    with pytest.raises(ValueError, match=r"action has shape \(2,\), but these environments need \(2, 1\)"):
        env.send(torch.zeros(2))


class Narrow(Counting):
    """Its float64 bounds are smaller than the nearest float32 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-0.1, 0.1, (1,), np.float64)

    def step(self, action: np.ndarray) -> tuple:
        assert self.action_space.contains(action), f"{action.dtype} {action[0]:.12f}"
        return super().step(action)


def test_actions_are_within_float64_bounds() -> None:
    env = WorkerVecEnv([Narrow] * 2, num_workers=0)
    env.reset(0)
    assert env.step(torch.tensor([[9.0], [-9.0]])).reward.tolist() == pytest.approx([0.1, -0.1])


def test_seed_of_an_episode_is_a_fixed_function() -> None:
    assert [episode_seed(*key) for key in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))] == SEEDS
    assert len({episode_seed(s, i, e) for s in range(10) for i in range(40) for e in range(40)}) == 16_000
    env = counting(0, [""] * 3, first_env=5)
    env.reset(9)
    for _ in range(8):
        env.step(torch.zeros(3, 1))
    inner = env._workers[0].group.envs
    assert [each.seed for each in inner] == [episode_seed(9, env_id, 1) for env_id in (5, 6, 7)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_describes_environment_step_seed_and_cause(num_workers: int) -> None:
    env = counting(num_workers, ["", "", "raises", ""], first_env=10)
    env.reset(4)
    for _ in range(4):
        env.step(torch.zeros(4, 1))
    with pytest.raises(EnvError) as caught:
        env.step(torch.zeros(4, 1))
    facts = caught.value.facts
    assert (facts["env_id"], facts["episode"], facts["step"]) == (12, 0, 4)
    assert facts["seed"] == episode_seed(4, 12, 0)
    for text in ("environment 12", "after 4 steps", str(facts["seed"]), "the gripper broke", "in _fail"):
        assert text in str(caught.value)
    env.close()


@pytest.mark.timed
@pytest.mark.parametrize(("fault", "cause"), [("is killed", "killed by SIGKILL"), ("exits", "exited with code 3")])
def test_a_dead_worker_is_reported_at_once(fault: str, cause: str) -> None:
    env = counting(2, ["", "", "", fault], first_env=10)
    env.reset(4)
    for _ in range(4):
        env.step(torch.zeros(4, 1))
    started = time.monotonic()
    with pytest.raises(EnvError, match=cause) as caught:
        env.step(torch.zeros(4, 1))
    assert caught.value.facts["env_id"] == 13 and caught.value.facts["step"] == 4
    assert "Worker 1 (environments 12 to 13)" in str(caught.value)
    env.close()
    assert time.monotonic() - started < 3


@pytest.mark.timed
@pytest.mark.parametrize("fault", ["hangs", "close hangs"])
def test_close_returns_even_if_an_environment_hangs(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CLOSE_TIMEOUT_S", 0.3)
    env = counting(2, [fault, ""], first_env=10)
    env.reset(4)
    for _ in range(4):
        env.step(torch.zeros(2, 1))
    env.send(torch.zeros(2, 1))
    pids = [worker.process.pid for worker in env._workers]
    started = time.monotonic()
    env.close()
    env.close()
    assert time.monotonic() - started < 3
    assert all(has_ended(pid) for pid in pids)


def test_garbage_collection_ends_the_workers_and_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    env = counting(2, ["", ""])
    pids = [worker.process.pid for worker in env._workers]
    del env
    assert all(has_ended(pid) for pid in pids)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("fault", ["", "hangs"])
def test_workers_do_not_outlive_a_killed_parent(fault: str, tmp_path: Path) -> None:
    parent = script(
        tmp_path,
        f"""
        def make():  # a function of the script itself
            return Counting({fault!r}, step=1)

        if __name__ == "__main__":
            env = WorkerVecEnv([make, make], num_workers=2)
            env.reset(0)
            env.send(torch.zeros(2, 1))
            print(*(worker.process.pid for worker in env._workers), flush=True)
            input()
    """,
    )
    pids = [int(text) for text in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 30
    while not all(has_ended(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_script_needs_a_main_guard_only_for_its_own_functions(tmp_path: Path) -> None:
    others, own = tmp_path / "others", tmp_path / "own"
    for folder in (others, own):
        folder.mkdir()
    process = script(
        others,
        """
        env = WorkerVecEnv([Counting] * 2, num_workers=2)
        print(env.reset(0).tolist())
        print("stepped", env.step(torch.zeros(2, 1)).obs.tolist())
    """,
    )
    refused = script(
        own,
        """
        def make():
            return Counting()

        WorkerVecEnv([make] * 2, num_workers=1)
    """,
    )
    out, errors = process.communicate(timeout=60)
    assert out.splitlines() == ["[[0.0], [0.0]]", "stepped [[1.5], [1.5]]"] and process.returncode == 0, errors
    _, errors = refused.communicate(timeout=60)
    assert (
        refused.returncode == 1
        and 'Put the code that runs under `if __name__ == "__main__":`' in errors.splitlines()[-1]
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_environment_that_cannot_be_created_is_refused_with_the_reason(num_workers: int) -> None:
    with pytest.raises(ValueError, match="Environment 1 could not be created: size=0 is below 1"):
        WorkerVecEnv([Counting, refuses], num_workers=num_workers)
    with pytest.raises(ValueError, match="differ"):
        counting(num_workers, ["", "other space"])
    env = counting(num_workers, ["", "wrong shape"])
    env.reset(0)
    with pytest.raises(EnvError, match=r"shape \(3,\), but its space has \(1,\)"):
        env.step(torch.zeros(2, 1))
    env.close()


def test_invalid_numbers_of_workers_and_functions_are_refused() -> None:
    with pytest.raises(ValueError, match="num_workers=3 does not fit 2 environments"):
        counting(3, ["", ""])
    with pytest.raises(ValueError, match="top level of a module"):
        WorkerVecEnv([lambda: Counting()], num_workers=1)
    partial = WorkerVecEnv([functools.partial(Counting, length=3)] * 2, num_workers=1)
    partial.reset(0)
    assert not partial.step(torch.zeros(2, 1)).ended.any()
    partial.close()


@pytest.mark.parametrize("env_id", ["Pendulum-v1", pytest.param("CartPole-v1", marks=pytest.mark.slow)])
def test_train_20_is_train_10_and_resume_10(env_id: str) -> None:
    """A resume with another number of workers continues the current episodes bit for bit."""
    uninterrupted = GymVecEnv(env_id, 4, 0, seed=1)
    _, played, actions = play(uninterrupted, 1, 260)
    for at in (0, 37, 215):
        saved = GymVecEnv(env_id, 4, 2, seed=1)
        saved.reset()
        for action in actions[:at]:
            saved.step(action)
        state = saved.state_dict()
        saved.close()
        resumed = GymVecEnv(env_id, 4, 1, seed=99)
        resumed.load_state_dict(state)
        assert resumed.resumed.all()
        assert_same([resumed.step(action) for action in actions[at:]], played[at:], f"after a resume at {at}")
        resumed.close()


def test_an_episode_that_does_not_repeat_itself_ends_as_a_truncation() -> None:
    saved = counting(0, ["", "forgets its seed", ""])
    saved.reset(1)
    for _ in range(3):
        saved.step(torch.zeros(3, 1))
    state = saved.state_dict()
    assert state["length"].tolist() == [3, 3, 3]
    resumed = counting(2, ["", "forgets its seed", ""])
    with pytest.warns(UserWarning, match="1 of the 3 episodes that ran at the checkpoint"):
        resumed.load_state_dict(state)
    assert resumed.resumed.tolist() == [True, False, True]
    obs = resumed.observe()[:, 0]
    assert obs[[0, 2]].tolist() == [3.5, 3.5] and obs[1] != state["obs"][1, 0]
    assert resumed.state_dict()["episode"].tolist() == [0, 1, 0]
    resumed.close()
    with pytest.warns(UserWarning, match="3 of the 3 episodes"):
        truncated = counting(0, ["", "", ""], resume="truncated")
        truncated.load_state_dict(state)
    assert not truncated.resumed.any() and truncated.state_dict()["episode"].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="saved state has 3 environments"):
        counting(0, [""]).load_state_dict(state)


class Dice(Counting):
    """Observes two dice from 1 on; `starts` are their smallest values."""

    def __init__(self, starts: tuple[int, int] = (1, 1)) -> None:
        super().__init__()
        self.observation_space = MultiDiscrete([6, 6], start=list(starts))

    def reset(self, **options) -> tuple[np.ndarray, dict]:
        super().reset(**options)
        return np.array([1, 6]), {}


def test_entries_of_multi_discrete_observations_are_counted_from_0() -> None:
    env = WorkerVecEnv([Dice], num_workers=0)
    assert env.reset(0).tolist() == [[0, 5]]
    with pytest.raises(ValueError, match="start at 0, 1, but those of one array need one start. Subtract it"):
        WorkerVecEnv([(Dice, {"starts": (0, 1)})], num_workers=0)
