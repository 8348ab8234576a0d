"""An action's simulation is robosuite's, bit for bit, and drawing does not change it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("libero", reason="LIBERO is not installed")


from powerband.core.machine import rendering
from powerband.recipes.libero.env.gymnasium_env import LiberoEnv

SAID = ("qpos", "qvel", "qacc", "qacc_warmstart", "ctrl", "xpos", "xquat", "geom_xpos", "site_xpos", "sensordata")
TASKS = [("libero_spatial", "0"), ("libero_90", "close the top drawer of the cabinet")]


def actions(count: int) -> np.ndarray:
    """Held for some steps each, down to the table and with the gripper closing: things are touched."""
    drawn = np.random.default_rng(3).uniform(-1, 1, (count // 10 + 1, 7)) * [1, 1, 1, 0.3, 0.3, 0.3, 1]
    drawn[:, 2] -= 0.6
    return np.clip(drawn, -1, 1).repeat(10, 0)[:count]


@pytest.mark.parametrize(
    "task", [TASKS[0], pytest.param(TASKS[1], marks=pytest.mark.slow)], ids=[name for name, _ in TASKS]
)
def test_an_action_is_robosuites_bit_for_bit(task: tuple[str, str]) -> None:
    rendering.prepare()
    theirs, ours = (LiberoEnv(*task, pixels=0, chunk=1) for _ in range(2))
    for env in (theirs, ours):
        env.reset(seed=4)
    touched = set()
    for action in actions(60):
        theirs.simulator.env.step(action.copy())
        ours.simulator.step(action.copy())
        one, other = theirs.simulator.env.sim.data._data, ours.simulator.env.sim.data._data
        for name in SAID:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        assert one.ncon == other.ncon and one.time == other.time
        np.testing.assert_array_equal(one.contact.dist, other.contact.dist)
        touched.add(int(one.ncon))
        assert theirs.simulator.env._check_success() == ours.simulator.env._check_success()
        assert theirs.simulator.env.timestep == ours.simulator.env.timestep
        assert theirs.simulator.env.cur_time == ours.simulator.env.cur_time
    assert len(touched) > 1, "something came and went"
    for env in (theirs, ours):
        env.close()


@pytest.mark.slow
def test_what_is_drawn_does_not_change_what_happens() -> None:
    """Coarse frames leave out all that plain ones do, and simplify the meshes too."""
    rendering.prepare()
    said = []
    # The meshes for 128 pixels are those of test_view.py, which keeps them in the cache.
    for words in ({"pixels": 0}, {"pixels": 128, "quality": "coarse"}):
        env = LiberoEnv("libero_spatial", "0", chunk=1, frames=1, **words)
        env.reset(seed=4)
        for action in actions(30):
            seen, *ends, info = env.step(action[None])
        seen.pop("images", None)
        said.append((seen, ends, info, {name: getattr(env.simulator.env.sim.data._data, name).copy() for name in SAID}))
        env.close()
    one, other = said
    assert other[1:3] == one[1:3]
    for first, second in ((one[0], other[0]), (one[3], other[3])):
        assert first.keys() == second.keys()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
