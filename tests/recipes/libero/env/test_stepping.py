"""A step simulates the same as robosuite does, bit for bit, and rendering does not change it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("libero", reason="LIBERO is not installed")


from powerband.core.machine import rendering
from powerband.recipes.libero.env.gymnasium_env import LiberoEnv

FIELDS = ("qpos", "qvel", "qacc", "qacc_warmstart", "ctrl", "xpos", "xquat", "geom_xpos", "site_xpos", "sensordata")
TASKS = [("libero_spatial", "0"), ("libero_90", "close the top drawer of the cabinet")]


def actions(count: int) -> np.ndarray:
    """Returns actions that last ten steps each and move down to the table, so that the robot touches objects."""
    samples = np.random.default_rng(3).uniform(-1, 1, (count // 10 + 1, 7)) * [1, 1, 1, 0.3, 0.3, 0.3, 1]
    samples[:, 2] -= 0.6
    return np.clip(samples, -1, 1).repeat(10, 0)[:count]


@pytest.mark.parametrize(
    "task", [TASKS[0], pytest.param(TASKS[1], marks=pytest.mark.slow)], ids=[name for name, _ in TASKS]
)
def test_a_step_equals_that_of_robosuite_bit_for_bit(task: tuple[str, str]) -> None:
    rendering.prepare()
    robosuite_env, libero_env = (LiberoEnv(*task, pixels=0, chunk=1) for _ in range(2))
    for env in (robosuite_env, libero_env):
        env.reset(seed=4)
    contact_counts = set()
    for action in actions(60):
        robosuite_env.simulator.env.step(action.copy())
        libero_env.simulator.step(action.copy())
        expected, actual = robosuite_env.simulator.env.sim.data._data, libero_env.simulator.env.sim.data._data
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(expected, name), getattr(actual, name), err_msg=name)
        assert expected.ncon == actual.ncon and expected.time == actual.time
        np.testing.assert_array_equal(expected.contact.dist, actual.contact.dist)
        contact_counts.add(int(expected.ncon))
        assert robosuite_env.simulator.env._check_success() == libero_env.simulator.env._check_success()
        assert robosuite_env.simulator.env.timestep == libero_env.simulator.env.timestep
        assert robosuite_env.simulator.env.cur_time == libero_env.simulator.env.cur_time
    assert len(contact_counts) > 1, "something came and went"
    for env in (robosuite_env, libero_env):
        env.close()


@pytest.mark.slow
def test_rendering_does_not_change_the_simulation() -> None:
    """Coarse frames leave out the same geometry as plain frames, and also simplify the meshes."""
    rendering.prepare()
    results = []
    # test_view.py needs the same meshes for 128 pixels, so that they are often in the cache.
    for options in ({"pixels": 0}, {"pixels": 128, "quality": "coarse"}):
        env = LiberoEnv("libero_spatial", "0", chunk=1, frames=1, **options)
        env.reset(seed=4)
        for action in actions(30):
            obs, *ends, info = env.step(action[None])
        obs.pop("images", None)
        results.append(
            (obs, ends, info, {name: getattr(env.simulator.env.sim.data._data, name).copy() for name in FIELDS})
        )
        env.close()
    one, other = results
    assert other[1:3] == one[1:3]
    for first, second in ((one[0], other[0]), (one[3], other[3])):
        assert first.keys() == second.keys()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
