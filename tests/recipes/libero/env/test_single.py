"""LiberoEnv: chunks of actions compared with single steps, frames, ends of episodes, seeds and scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("libero", reason="LIBERO is not installed")

from powerband.core.machine import rendering
from powerband.recipes.libero.env.gymnasium_env import LiberoEnv
from powerband.recipes.libero.env.scripted_policy import ScriptedDemonstrator, task_script
from powerband.recipes.libero.env.tasks import LiberoTask, find_task

DRAWER = ("libero_90", "close the top drawer of the cabinet")


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[..., LiberoEnv]]:
    envs: list[LiberoEnv] = []
    rendering.prepare()

    def make_env(*task: str, **options) -> LiberoEnv:
        envs.append(LiberoEnv(*(task or DRAWER), **{"pixels": 0, **options}))
        return envs[-1]

    yield make_env
    for env in envs:
        env.close()


@pytest.fixture(scope="module")
def drawer(make) -> LiberoEnv:
    """Returns an environment of the drawer task with single actions; several tests reset it."""
    names = task_script(find_task(*DRAWER))[0]
    return make(poses=names, chunk=1, frames=1, pixels=32, quality="plain", max_steps=250)


@pytest.fixture(scope="module")
def chunks(make) -> LiberoEnv:
    """Returns an environment of the drawer task with chunks of four actions."""
    return make(chunk=4, frames=2, pixels=32, quality="plain", max_steps=6)


@pytest.fixture(scope="module")
def spatial(make) -> LiberoEnv:
    """Returns an environment whose scene has many objects."""
    names = task_script(find_task("libero_spatial", "0"))[0]
    return make("libero_spatial", "0", poses=names, chunk=1, frames=1, pixels=64, max_steps=100, quality="plain")


def some_actions(count: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(-0.5, 0.5, (count, 7)).astype(np.float32)


def test_a_chunk_equals_its_actions_in_sequence(chunks, drawer) -> None:
    chunk_env, action_env = chunks, drawer
    for env in (chunk_env, action_env):
        env.reset(seed=5)
    actions = some_actions(4)
    obs, _, _, truncated, info = chunk_env.step(actions)
    for action in actions:
        single_obs, *_ = action_env.step(action[None])
    for name in ("joints", "gripper", "eef_pos", "eef_quat"):
        np.testing.assert_array_equal(obs[name], single_obs[name], err_msg=name)
    assert obs["step_count"] == 4 and not truncated and info == {"success": 0.0, "steps": 4.0}
    *_, truncated, info = chunk_env.step(actions)
    assert truncated and info["steps"] == 6.0, "two of the four were left"


def test_the_same_seed_gives_the_same_episode_and_another_seed_does_not(spatial) -> None:
    env = spatial
    first = env.reset(seed=1)[0]["poses"]
    other = env.reset(seed=2)[0]["poses"]
    again = env.reset(seed=1)[0]["poses"]
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_every_reset_places_objects_on_their_fixtures(make) -> None:
    options = {"poses": ("akita_black_bowl_1", "flat_stove_1_cook_region"), "max_steps": 10}
    env = make("libero_spatial", "7", **options)
    for seed in (1, 2):
        bowl, stove = env.reset(seed=seed)[0]["poses"]
        assert np.abs(bowl - stove).max() < 0.1, "a soft reset keeps the stove's position, and must not add it twice"


def test_published_states_are_used_in_order(make) -> None:
    names = task_script(find_task("libero_spatial", "0"))[0]
    env = make("libero_spatial", "0", poses=names, starts="published", first_start=1, start_stride=2)
    initial_poses = [env.reset(seed=7)[0]["poses"] for _ in range(2)]
    assert np.abs(initial_poses[0] - initial_poses[1]).max() > 1e-3
    for episode in (1, 0):  # a simulator that is restarted continues with the start of its episode
        again = env.reset(seed=7, options={"episode": episode})[0]["poses"]
        np.testing.assert_allclose(again, initial_poses[episode], atol=1e-6)


def test_frames_are_the_newest_of_each_camera_and_upright(chunks, drawer) -> None:
    first = chunks.reset(seed=5)[0]["images"]
    assert not first[0].any() and first[1].any(), "nothing was there before the first frame"
    drawer.reset(seed=5)
    single_frames = []
    for action in some_actions(4):
        single_frames.append(drawer.step(action[None])[0]["images"][0])
    images = chunks.step(some_actions(4))[0]["images"]
    np.testing.assert_array_equal(images, np.stack(single_frames[2:]))
    assert chunks.render().shape == (32, 64, 3)


def test_plain_frames_resemble_full_frames(make, drawer) -> None:
    plain, full = (env.reset(seed=5)[0]["images"] for env in (drawer, make(pixels=32, quality="full", frames=1)))
    assert np.abs(plain.astype(int) - full).mean() < 12, "shadows and edges apart"
    assert (plain != full).any()


def test_only_geometry_outside_the_view_is_left_out(spatial) -> None:
    env = spatial
    env.reset(seed=5)
    for repetition in range(3):
        for action in some_actions(4) * (1 if repetition % 2 else -1):
            env.step(action[None])
        env.view.culls = False
        full_frame = env.render()
        env.view.culls = True
        np.testing.assert_array_equal(env.render(), full_frame)
    count = len(env.view.model.geom_group)
    assert env.view.in_view("robot0_eye_in_hand").sum() < 0.6 * count, "the arm is behind its wrist"


def solve(env: LiberoEnv, task: LiberoTask, jitter: float = 0.02) -> ScriptedDemonstrator:
    """Plays one episode and returns the demonstrator; the episode must succeed."""
    demonstrator = ScriptedDemonstrator(task_script(task)[1], np.random.default_rng(0), jitter)
    obs, solved, truncated, info = env.reset(seed=0)[0], False, False, {}
    while not (solved or truncated):
        obs, reward, solved, truncated, info = env.step(demonstrator.act(obs)[None])
    assert solved and reward == 1.0 and info["success"] == 1.0 and obs["goals_met"].all()
    return demonstrator


def test_a_script_closes_the_drawer(drawer) -> None:
    solve(drawer, find_task(*DRAWER))


def test_a_script_solves_a_task_with_two_conditions(make) -> None:
    """The stove is turned on, and a pot is put on it."""
    task = find_task("libero_10", "2")
    names, script = task_script(task)
    env = make("libero_10", "2", poses=names, chunk=1, frames=1, max_steps=500, starts="published")
    assert [goal.relation for goal in script.goals] == ["turnon", "on"]
    assert not env.reset(seed=0)[0]["goals_met"].any()
    env.episode = -1
    assert set(solve(env, task).attempts) == {"turnon flat_stove_1", "on moka_pot_1"}


def test_poses_are_those_of_the_simulation(drawer) -> None:
    """The drawer is a site, and the cabinet is an object. The tables of robosuite are the reference."""
    import mujoco

    obs, simulator = drawer.reset(seed=3)[0], drawer.simulator
    for row, name in enumerate(drawer.poses):
        state = simulator.env.object_states_dict[name].get_geom_state()
        np.testing.assert_allclose(obs["poses"][row], state["pos"], atol=1e-6)
        matrix = np.empty(9)
        x, y, z, w = obs["rotations"][row].astype(np.float64)
        mujoco.mju_quat2Mat(matrix, np.array([w, x, y, z]))
        if name in simulator.env.obj_body_id:
            np.testing.assert_allclose(matrix, simulator.data.xmat[simulator.env.obj_body_id[name]], atol=1e-5)
        else:
            np.testing.assert_allclose(matrix, simulator.data.site(name).xmat, atol=1e-5)


def test_a_reset_keeps_the_global_random_state_of_numpy(drawer) -> None:
    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    drawer.reset(seed=9)
    assert np.random.rand() == expected
