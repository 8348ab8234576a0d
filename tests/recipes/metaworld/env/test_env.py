"""Meta-World: seeds, goals, time limits, several tasks in one vector, and EnvPool compared with the package."""

import numpy as np
import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.metaworld.env.gymnasium_env import GOAL_SEED, VALIDATION_GOAL_SEED, MetaWorldEnv, scripted_policy
from powerband.recipes.metaworld.env.tasks import (
    GOALS,
    MT10_TASKS,
    MT50_TASKS,
    TaskConfig,
    UnknownTask,
    envpool_available,
    envpool_task_id,
    resolve_task,
)
from powerband.recipes.metaworld.env.vec_env import make_metaworld_vec_env

pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")
needs_envpool = pytest.mark.skipif(
    not envpool_available(), reason="envpool is not installed: pip install 'powerband[pool]'"
)


def rolled(env, seed, steps=5):
    obs, _ = env.reset(seed=seed)
    rows = [obs]
    for step in range(steps):
        rows.append(env.step(np.full(4, 0.1 * step, np.float32))[0])
    return np.stack(rows)


def test_a_seed_repeats_its_episode_and_another_seed_draws_another_goal():
    env = MetaWorldEnv("push")
    first, again, other = rolled(env, 7), rolled(env, 7), rolled(env, 8)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first[0, 36:39], other[0, 36:39])
    fresh = MetaWorldEnv("push")
    np.testing.assert_array_equal(rolled(fresh, 7), first)


def test_cycled_goals_follow_the_fifty_in_order():
    env = MetaWorldEnv("reach", goals="cycled", first_goal=3, goal_stride=10)
    from metaworld import MT1

    def next_goal() -> np.ndarray:
        goal = env.reset()[0][36:39]
        np.testing.assert_array_equal(env.reset()[0][36:39], goal, "an episode without a step keeps its goal")
        env.step(np.zeros(4))
        return goal

    goals = [next_goal() for _ in range(6)]
    other, expected = MetaWorldEnv("reach").env, []
    for turn in range(6):
        other.set_task(MT1("reach-v3", seed=GOAL_SEED).train_tasks[(3 + 10 * turn) % 50])
        expected.append(other.reset()[0][36:39])
    np.testing.assert_allclose(goals, expected)
    np.testing.assert_array_equal(goals[5], goals[0])
    during = MetaWorldEnv("reach", goals="cycled", goal_seed=VALIDATION_GOAL_SEED, first_goal=3)
    assert not np.allclose(during.reset()[0][36:39], goals[0]), "evaluations during training play other goals"


def test_the_time_limit_truncates_and_success_lasts_until_the_end():
    env, act = MetaWorldEnv("reach", horizon=120, goals="cycled"), scripted_policy("reach")
    obs, _ = env.reset()
    flags, ends = [], []
    for step in range(120):
        # After step 90 the hand leaves the goal again.
        action = act(obs) if step < 90 else np.array([0, -1, 0, 0], np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        assert 0 <= reward <= 10 and not terminated
        flags.append(info["success"])
        ends.append(truncated)
    assert ends == [False] * 119 + [True]
    assert flags[0] == 0 and flags[-1] == 1 and flags == sorted(flags)


def test_one_hot_codes_follow_the_observation():
    envs = make_metaworld_vec_env(TaskConfig("mt10", 5, backend="workers"), 10, 0)
    obs = envs.reset(0)
    assert obs.shape == (10, 49)
    assert torch.equal(obs[:, 39:], torch.eye(10))
    step = envs.step(torch.zeros(10, 4))
    assert torch.equal(step.obs[:, 39:], torch.eye(10))
    envs.close()


@needs_envpool
def test_pools_of_ten_tasks_form_one_vector_whose_rows_keep_their_task():
    envs = make_metaworld_vec_env(TaskConfig("mt10", 7, backend="envpool"), 20, 2)
    obs = envs.reset(0)
    code = torch.eye(10).repeat_interleave(2, 0)
    assert torch.equal(obs[:, 39:], code)
    for number in range(1, 15):
        step = envs.step(torch.zeros(20, 4))
        assert torch.equal(step.obs[:, 39:], code)
        assert bool(step.truncated.all()) == (number % 7 == 0) == (step.final_obs is not None)
        assert not step.terminated.any()
    envs.close()


@needs_envpool
def test_a_pool_draws_goals_by_its_seed():
    def goals(seed):
        envs = make_metaworld_vec_env(TaskConfig("reach", 5, backend="envpool"), 4, 2)
        found = envs.reset(seed)[:, 36:39].clone()
        envs.close()
        return found

    assert torch.equal(goals(1), goals(1))
    assert not torch.allclose(goals(1), goals(2))
    assert len(set(map(tuple, goals(1).tolist()))) == 4


@needs_envpool
@pytest.mark.parametrize("task", MT10_TASKS)
def test_envpool_and_the_package_agree_from_the_same_start(task):
    """Compares observation, reward and success of 60 steps from the same start.

    EnvPool does not expose its random vector. The test solves for the vector whose reset gives EnvPool's observation.
    """
    import envpool

    native = envpool.make_gymnasium(envpool_task_id(task), num_envs=1, seed=3, partially_observable=False)
    first = native.reset()[0][0]
    env = MetaWorldEnv(task)
    env.goals, env.env.set_task = "cycled", lambda goal: None  # keep the vector that the test sets
    env.env._freeze_rand_vec = True
    places = [*range(3, 18), *range(36, 39)]

    def reset(vector):
        env.env._last_rand_vec = vector
        return env.reset()[0]

    box = env.env._random_reset_space
    vector = (box.low + box.high) / 2
    if task in ("reach", "push", "pick-place"):
        vector = np.concatenate([first[4:7], first[36:39]])
    else:
        for _ in range(3):
            base = reset(vector)[places]
            free = [axis for axis in range(len(vector)) if box.high[axis] > box.low[axis]]
            slopes = []
            for axis in free:
                moved = vector.copy()
                moved[axis] += 1e-4
                slopes.append((reset(moved)[places] - base) / 1e-4)
            vector = vector.copy()
            vector[free] += np.linalg.lstsq(np.stack(slopes, 1), first[places] - base, rcond=1e-3)[0]
    start = reset(vector)
    np.testing.assert_allclose(start, first, atol=2e-3)
    env.succeeded = False
    draw = np.random.default_rng(1)
    for _ in range(60):
        action = draw.uniform(-1, 1, 4).astype(np.float32)
        obs, reward, _, _, info = env.env.step(action)
        other, other_reward, _, _, other_info = native.step(action[None])
        np.testing.assert_allclose(obs[:3], other[0][:3], atol=2e-3)
        np.testing.assert_allclose(obs[36:39], other[0][36:39], atol=2e-3)
        assert reward == pytest.approx(other_reward[0], abs=0.1)
        assert bool(info["success"]) == bool(other_info["success"][0])
    native.close()


def test_worker_processes_and_this_process_give_the_same_steps():
    runs = []
    for workers in (0, 2):
        envs = make_metaworld_vec_env(TaskConfig("drawer-close", 6, backend="workers"), 4, workers, seed=5)
        obs, rewards = [envs.reset()], []
        for _ in range(8):
            step = envs.step(torch.full((4, 4), 0.5))
            obs.append(step.obs.clone())
            rewards.append(step.reward.clone())
        envs.close()
        runs.append((torch.stack(obs), torch.stack(rewards)))
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1])


def test_a_resume_continues_the_current_episode():
    envs = make_metaworld_vec_env(TaskConfig("window-open", 50, backend="workers"), 2, 0, seed=1)
    envs.reset()
    for _ in range(4):
        envs.step(torch.full((2, 4), 0.3))
    state = envs.state_dict()
    ahead = envs.step(torch.full((2, 4), -0.2))
    other = make_metaworld_vec_env(TaskConfig("window-open", 50, backend="workers"), 2, 0, seed=1)
    other.load_state_dict(state)
    assert bool(other.resumed.all())
    assert torch.equal(other.step(torch.full((2, 4), -0.2)).obs, ahead.obs)
    envs.close()
    other.close()


def test_names_of_tasks():
    from metaworld.env_dict import MT10_V3, MT50_V3

    assert [f"{name}-v3" for name in MT10_TASKS] == list(MT10_V3)
    assert [f"{name}-v3" for name in MT50_TASKS] == list(MT50_V3)
    assert resolve_task("reach") == ("reach", "")
    assert resolve_task("door-open-v3") == ("door-open", "")
    name, notice = resolve_task("reach-v2")
    assert name == "reach" and "reach-v3" in notice
    with pytest.raises(UnknownTask, match="door-open"):
        resolve_task("door-opn")


def test_every_task_has_a_scripted_teacher():
    for task in MT50_TASKS:
        action = scripted_policy(task)(np.zeros(39))
        assert action.shape == (4,) and np.abs(action).max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("task", MT50_TASKS)
def test_every_task_has_fifty_goals(task):
    env = MetaWorldEnv(task, goals="cycled")
    starts = []
    for _ in range(GOALS + 1):
        starts.append(tuple(env.reset()[0]))
        env.step(np.zeros(4))  # an episode without a step would keep its goal
    assert starts[GOALS] == pytest.approx(starts[0], abs=1e-3)
    assert len(set(starts[:GOALS])) == GOALS


@pytest.mark.slow
def test_the_fifty_tasks_form_one_vector():
    envs = make_metaworld_vec_env(TaskConfig("mt50", 5), 50, 2)
    assert torch.equal(envs.reset(0)[:, 39:], torch.eye(50))
    for _ in range(6):
        step = envs.step(torch.zeros(50, 4))
        assert torch.equal(step.obs[:, 39:], torch.eye(50)) and bool(torch.isfinite(step.reward).all())
    envs.close()


def test_invalid_options_are_refused():
    with pytest.raises(ConfigError, match="Write horizon=400"):
        MetaWorldEnv("reach", horizon=600)
    with pytest.raises(ConfigError, match="reward_version=v3"):
        MetaWorldEnv("reach", reward_version="v3")
    with pytest.raises(ConfigError, match="num_envs=10"):
        TaskConfig("mt10").task_of_each_env(14)
    with pytest.raises(ConfigError, match="num_envs=50"):
        TaskConfig("mt50").task_of_each_env(10)
    with pytest.raises(ConfigError, match="backend=workers"):
        _ = TaskConfig(reward_version="v1", backend="envpool").resolved_backend
