"""Private interfaces of MuJoCo: the version that they were written for, and that they still work."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pytest
from numba import njit

from powerband.core.errors import ConfigError
from powerband.recipes.metaworld.env import mujoco_private
from powerband.recipes.metaworld.env.mujoco_private import mj_step, mju_copy

mujoco = pytest.importorskip("mujoco", reason="mujoco is not installed: pip install 'powerband[metaworld]'")

TESTED_VERSION = "3.3."
PENDULUM = """<mujoco><worldbody><body pos="0 0 1"><joint type="hinge" axis="0 1 0"/>
<geom type="capsule" size=".05" fromto="0 0 0 0.2 0 -.5"/></body></worldbody></mujoco>"""


def test_the_version_is_the_one_that_the_file_was_written_for() -> None:
    assert version("mujoco").startswith(TESTED_VERSION), (
        f"mujoco {version('mujoco')}: check env/mujoco_private.py, then change TESTED_VERSION."
    )


def test_compiled_code_steps_the_simulation_behind_an_address() -> None:
    mujoco_private.load_library()

    @njit
    def step_and_copy(model, data, source, target):
        mj_step(model, data)
        mju_copy(target.ctypes.data, source, target.size)

    model = mujoco.MjModel.from_xml_string(PENDULUM)
    ours, reference = mujoco.MjData(model), mujoco.MjData(model)
    position = np.zeros(1)
    for _ in range(20):
        addresses = np.array([mujoco_private.address_of(model), mujoco_private.address_of(ours)], np.uint64)
        step_and_copy(addresses[0], addresses[1], np.uint64(ours.qpos.ctypes.data), position)
        mujoco.mj_step(model, reference)
        assert ours.qpos[0] == reference.qpos[0] == position[0] != 0.0
    assert ours.time == reference.time == pytest.approx(20 * model.opt.timestep)


def test_a_missing_library_is_a_user_error(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mujoco, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ConfigError, match="backend=threads: .* Write backend=workers"):
        mujoco_private.load_library()
