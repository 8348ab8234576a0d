"""Meta-World stepped by threads of this process against the package: physics bit for bit, the rest to rounding."""

import numpy as np
import pytest
import torch

from powerband.envs.metaworld import env, pool
from powerband.envs.metaworld.env import Tasks, metaworld_envs
from powerband.envs.metaworld.single import MetaWorldEnv, scripted
from powerband.envs.metaworld.tasks import TEN

pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")
from powerband.envs.metaworld.threads import MetaWorldThreads

HORIZON = 100
REWARD_NEAR = 2e-6
"""The package computes some products with the action, which is float32, in float32; rewards go to 10."""


def state(env):
    data = env.env.data
    return np.concatenate([data.qpos, data.qvel, data.qacc_warmstart, data.mocap_pos[0], data.ctrl])


@pytest.mark.parametrize("task", TEN)
def test_threads_and_the_package_agree(task):
    """Three rows, of which two solve the task with more or less noise and one acts at random, over an episode's end."""
    threads, rows = MetaWorldThreads([task] * 3, HORIZON, 2), [MetaWorldEnv(task, HORIZON) for _ in range(3)]
    seeds, policy, draw = [11, 12, 13], scripted(task), np.random.default_rng(0)
    obs = threads.reset(seeds)
    np.testing.assert_array_equal(obs, [env.reset(seed=seed)[0] for env, seed in zip(rows, seeds, strict=True)])
    for step in range(1, HORIZON + 30):
        noisy = np.clip(policy(obs[1]) + draw.normal(0, 0.3, 4), -1, 1)
        action = np.stack([policy(obs[0]), noisy, draw.uniform(-1, 1, 4)]).astype(np.float32)
        threads.send(action)
        ours = threads.recv(lambda ended: [seed + 10 for seed in seeds])
        theirs = [env.step(row) for env, row in zip(rows, action, strict=True)]
        ended = step == HORIZON
        assert ours.truncated.tolist() == [ended] * 3 == [row[3] for row in theirs] and not ours.terminated.any()
        assert ended == (ours.final_obs is not None)
        obs = np.stack([row[0] for row in theirs])
        np.testing.assert_allclose(ours.final_obs if ended else ours.obs, obs, rtol=0, atol=1e-14)
        np.testing.assert_allclose(ours.reward, [row[1] for row in theirs], rtol=0, atol=REWARD_NEAR)
        assert ours.info["success"].tolist() == [row[4]["success"] for row in theirs]
        if ended:
            obs = np.stack([env.reset(seed=seed + 10)[0] for env, seed in zip(rows, seeds, strict=True)])
            np.testing.assert_array_equal(ours.obs, obs)
        for mine, other in zip(threads.envs, rows, strict=True):
            np.testing.assert_array_equal(state(mine), state(other))
    threads.close()


def rolled(threads, task="mt10", steps=9, seed=3, **words):
    """Observations, rewards and successes of all steps; episodes have six."""
    envs = metaworld_envs(Tasks(task, 6, backend="threads"), 10, threads, seed=seed, **words)
    found, draw = [envs.reset()], torch.Generator().manual_seed(0)
    for _ in range(steps):
        step = envs.step(torch.rand(10, 4, generator=draw) * 2 - 1)
        assert step.obs.dtype == step.reward.dtype == torch.float32
        found += [step.obs, step.reward[:, None], step.episode["success"][:, None]]
        found += [] if step.final_obs is None else [step.final_obs]
    envs.close()
    envs.close()
    return found


def test_the_number_of_threads_changes_no_bit_and_codes_stand_behind_the_observation():
    one, two = rolled(1), rolled(2)
    assert len(one) == len(two) == 29
    assert all(torch.equal(*pair) for pair in zip(one, two, strict=True))
    assert one[0].shape == (10, 49) and torch.equal(one[0][:, 39:], torch.eye(10))
    assert torch.equal(one[-3][:, 39:], torch.eye(10))


def test_seeds_draw_the_episodes_and_rows_are_numbered_over_ranks():
    first, again, other = (rolled(2, "push", 2, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert len(set(map(tuple, first[:, 36:39].tolist()))) == 10
    assert torch.equal(rolled(2, "push", 2, 1, first_env=4)[0][:6], first[4:])


def test_workers_and_threads_give_the_same():
    """The vectors as a whole, by their first two episodes."""
    runs = []
    for backend in ("threads", "workers"):
        envs = metaworld_envs(Tasks("door-open", 4, backend=backend), 2, 0, seed=5)
        obs = [envs.reset(), *(envs.step(torch.full((2, 4), 0.5)).obs for _ in range(6))]
        runs.append(torch.stack(obs))
        envs.close()
    torch.testing.assert_close(*runs, rtol=0, atol=1e-7)


def test_what_threads_raise_is_raised_here():
    threads = MetaWorldThreads(["reach"] * 2, 5, 2)
    with pytest.raises(IndexError):
        threads.reset([1])
    threads.reset([1, 2])
    threads.send(np.zeros((2, 4), np.float32))
    threads.close()  # with a step under way


def test_what_auto_takes_and_what_is_refused(monkeypatch):
    monkeypatch.setattr(pool, "importable", lambda: True)
    assert Tasks().stepper == Tasks("mt10").stepper == "threads"
    assert Tasks("hammer").stepper == "envpool" and Tasks(reward_version="v1").stepper == "workers"
    monkeypatch.setattr(env, "find_spec", lambda name: None)
    assert Tasks().stepper == "envpool"
    monkeypatch.setattr(pool, "importable", lambda: False)
    assert Tasks().stepper == Tasks("hammer").stepper == "workers"
    with pytest.raises(ValueError, match="EnvPool is not installed"):
        _ = Tasks(backend="envpool").stepper
    with pytest.raises(ValueError, match="task=hammer: .* Write backend=workers"):
        _ = Tasks("hammer", backend="threads").stepper
    with pytest.raises(ValueError, match="task=hammer: .* Write backend=workers"):
        MetaWorldThreads(["hammer"], 5)
    for backend in ("threads", "envpool"):
        with pytest.raises(ValueError, match=f"reward_version=v1: backend={backend} has v2 only"):
            _ = Tasks(reward_version="v1", backend=backend).stepper
