"""Meta-World stepped by threads compared with the package: physics bit for bit, rewards up to rounding."""

import numpy as np
import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.metaworld.env import tasks
from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv, scripted_policy
from powerband.recipes.metaworld.env.tasks import MT10_TASKS, MT50_TASKS, TaskConfig
from powerband.recipes.metaworld.env.vec_env import make_metaworld_vec_env

pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")
from powerband.recipes.metaworld.env.threads.vector import ThreadedMetaWorld

HORIZON = 100
TRANSLATED = ("hammer", "bin-picking", "stick-push")
"""Two objects and a joint; a value that the first reward after a reset sets; a success that needs contact."""
REWARD_TOLERANCE = 2e-6
"""The package computes some products with the float32 action in float32; rewards reach 10."""


def state(env):
    data = env.env.data
    return np.concatenate([data.qpos, data.qvel, data.qacc_warmstart, data.mocap_pos[0], data.ctrl])


def compare(task, horizon, steps):
    """Steps three rows over ends of episodes: scripted actions, scripted actions with noise, and random actions."""
    threads, rows = ThreadedMetaWorld([task] * 3, horizon, 2), [MetaWorldEnv(task, horizon) for _ in range(3)]
    seeds, policy, draw = np.array([11, 12, 13]), scripted_policy(task), np.random.default_rng(0)
    obs = threads.reset(seeds.tolist())
    np.testing.assert_array_equal(obs, [env.reset(seed=int(seed))[0] for env, seed in zip(rows, seeds, strict=True)])
    for step in range(1, steps):
        noisy = np.clip(policy(obs[1]) + draw.normal(0, 0.3, 4), -1, 1)
        action = np.stack([policy(obs[0]), noisy, draw.uniform(-1, 1, 4)]).astype(np.float32)
        threads.send(action)
        seeds[:] += 10 * (step % horizon == 0)
        ours = threads.recv(lambda ended: seeds.tolist())
        theirs = [env.step(row) for env, row in zip(rows, action, strict=True)]
        ended = step % horizon == 0
        assert ours.truncated.tolist() == [ended] * 3 == [row[3] for row in theirs] and not ours.terminated.any()
        assert ended == (ours.final_obs is not None)
        obs = np.stack([row[0] for row in theirs])
        np.testing.assert_allclose(ours.final_obs if ended else ours.obs, obs, rtol=0, atol=1e-14)
        np.testing.assert_allclose(ours.reward, [row[1] for row in theirs], rtol=0, atol=REWARD_TOLERANCE)
        assert ours.info["success"].tolist() == [row[4]["success"] for row in theirs]
        if ended:
            obs = np.stack([env.reset(seed=int(seed))[0] for env, seed in zip(rows, seeds, strict=True)])
            np.testing.assert_array_equal(ours.obs, obs)
        for mine, other in zip(threads.envs, rows, strict=True):
            np.testing.assert_array_equal(state(mine), state(other))
    threads.close()


@pytest.mark.parametrize("task", (*MT10_TASKS, *(pytest.param(task, marks=pytest.mark.slow) for task in TRANSLATED)))
def test_threads_and_the_package_agree(task):
    compare(task, HORIZON, HORIZON + 30)


@pytest.mark.slow
@pytest.mark.parametrize("task", MT50_TASKS)
def test_all_fifty_tasks_agree_with_the_package_over_1000_steps(task):
    compare(task, 400, 1_001)


def rolled(threads, task="mt10", steps=9, seed=3, **options):
    """Observations, rewards and successes of all steps; an episode has six."""
    envs = make_metaworld_vec_env(TaskConfig(task, 6, backend="threads"), 10, threads, seed=seed, **options)
    found, draw = [envs.reset()], torch.Generator().manual_seed(0)
    for _ in range(steps):
        step = envs.step(torch.rand(10, 4, generator=draw) * 2 - 1)
        assert step.obs.dtype == step.reward.dtype == torch.float32
        found += [step.obs, step.reward[:, None], step.episode["success"][:, None]]
        found += [] if step.final_obs is None else [step.final_obs]
    envs.close()
    envs.close()
    return found


def test_the_number_of_threads_changes_no_bit_and_codes_follow_the_observation():
    one, two = rolled(1), rolled(2)
    assert len(one) == len(two) == 29
    assert all(torch.equal(*pair) for pair in zip(one, two, strict=True))
    assert one[0].shape == (10, 49) and torch.equal(one[0][:, 39:], torch.eye(10))
    assert torch.equal(one[-3][:, 39:], torch.eye(10))


def test_seeds_and_global_row_numbers_draw_the_goals():
    first, again, other = (rolled(2, "push", 2, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert len(set(map(tuple, first[:, 36:39].tolist()))) == 10
    assert torch.equal(rolled(2, "push", 2, 1, first_env=4)[0][:6], first[4:])


def test_workers_and_threads_give_the_same_observations():
    """Compares the vectors over their first two episodes."""
    runs = []
    for backend in ("threads", "workers"):
        envs = make_metaworld_vec_env(TaskConfig("door-open", 4, backend=backend), 2, 0, seed=5)
        obs = [envs.reset(), *(envs.step(torch.full((2, 4), 0.5)).obs for _ in range(6))]
        runs.append(torch.stack(obs))
        envs.close()
    torch.testing.assert_close(*runs, rtol=0, atol=1e-7)


def test_an_exception_in_a_thread_is_raised_by_the_caller():
    threads = ThreadedMetaWorld(["reach"] * 2, 5, 2)
    with pytest.raises(IndexError):
        threads.reset([1])
    threads.reset([1, 2])
    threads.send(np.zeros((2, 4), np.float32))
    threads.close()  # while a step is pending


def test_the_choice_of_auto_and_unsupported_rewards(monkeypatch):
    monkeypatch.setattr(tasks, "envpool_available", lambda: True)
    assert TaskConfig().resolved_backend == TaskConfig("mt10").resolved_backend == "threads"
    assert TaskConfig("hammer").resolved_backend == TaskConfig("mt50").resolved_backend == "threads"
    assert TaskConfig(reward_version="v1").resolved_backend == "workers"
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    assert TaskConfig().resolved_backend == "envpool"
    monkeypatch.setattr(tasks, "envpool_available", lambda: False)
    assert TaskConfig().resolved_backend == TaskConfig("hammer").resolved_backend == "workers"
    with pytest.raises(ConfigError, match="EnvPool is not installed"):
        _ = TaskConfig(backend="envpool").resolved_backend
    for backend in ("threads", "envpool"):
        with pytest.raises(ConfigError, match=f"reward_version=v1: backend={backend} has v2 only"):
            _ = TaskConfig(reward_version="v1", backend=backend).resolved_backend
