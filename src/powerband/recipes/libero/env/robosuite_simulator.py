"""RobosuiteSimulator: runs LIBERO's robosuite environment with a faster, bit-identical step. No torch here.

This is the only file that uses private attributes of robosuite. They are those of `ROBOSUITE_VERSION`; a test compares
it with the installed version.

For each of the 25 simulation steps of an action, robosuite lets MuJoCo compute everything three times from one state:
before the controller, in the controller, and in the step. Positions, contacts and velocities are the same each time;
only the forces differ, because the solver starts from its last solution. `step` computes positions, contacts and
velocities once, and the forces as often as robosuite.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from powerband.recipes.libero.env.tasks import INSTALL, LiberoNotInstalled

ROBOSUITE_VERSION = "1.4.0"
"""Version of robosuite whose private attributes this file uses."""
MAX_PLACEMENT_ATTEMPTS = 100
"""Largest number of attempts to place the objects of a scene."""


class RobosuiteSimulator:
    """Simulates one LIBERO task in robosuite, without its cameras and observables.

    `robot_state` and `pose_of` replace the observables, and `LiberoRenderer` replaces the cameras.

    Args:
        problem: BDDL file, which describes the scene and the goals of the task.
        control_freq: Actions per second.

    Attributes:
        env: robosuite's environment.
        unplaced: Body, position (3,) and quaternion (4,) w, x, y, z of each fixture in the file of its model.

    Raises:
        LiberoNotInstalled: LIBERO is not installed.
    """

    def __init__(self, problem: str, control_freq: float) -> None:
        try:
            # robosuite refuses a number that is not a CUDA device; EGL numbers its devices differently.
            with _suppressed_output(), _unset("MUJOCO_EGL_DEVICE_ID"):
                from libero.libero.envs import env_wrapper
        except ImportError as error:
            raise LiberoNotInstalled(f"LIBERO cannot be imported ({error}). Write {INSTALL}.") from error
        options = {"use_camera_obs": False, "has_offscreen_renderer": False, "has_renderer": False, "ignore_done": True}
        with _suppressed_output():
            self.env = env_wrapper.ControlEnv(problem, control_freq=control_freq, hard_reset=False, **options).env
        for name in list(self.env._observables):  # robosuite computes each 25 times per action, and they are not used
            self.env.modify_observable(name, "enabled", False)
            self.env.modify_observable(name, "active", False)
        self.unplaced = [
            (
                self.model.body(fixture.root_body).id,
                _numbers(fixture, "pos", "0 0 0"),
                _numbers(fixture, "quat", "1 0 0 0"),
            )
            for fixture in self.env.fixtures_dict.values()
        ]

    @property
    def model(self) -> Any:
        """MuJoCo's model (mujoco.MjModel)."""
        return self.env.sim.model._model

    @property
    def data(self) -> Any:
        """MuJoCo's state (mujoco.MjData)."""
        return self.env.sim.data._data

    def reset(self) -> None:
        """Resets the environment; repeats the random placement of the objects if they do not fit.

        LIBERO places objects on fixtures relative to a model in which no fixture has been placed, which is the case
        after a hard reset only. This function therefore moves the fixtures back before each soft reset.
        """
        from robosuite.utils.errors import RandomizationError

        for attempt in range(MAX_PLACEMENT_ATTEMPTS):
            for body, position, quaternion in self.unplaced:
                self.model.body_pos[body], self.model.body_quat[body] = position, quaternion
            try:
                with _suppressed_output():
                    self.env.reset()
                return
            except RandomizationError:
                if attempt == MAX_PLACEMENT_ATTEMPTS - 1:
                    raise

    def set_state(self, state: np.ndarray) -> None:
        """Sets the state from a flat array of time, positions and velocities."""
        self.env.sim.set_state_from_flattened(state)
        self.env.sim.forward()

    def step(self, action: np.ndarray) -> None:
        """Simulates one action (7,), as ``env.step(action)`` of robosuite does, without observations."""
        import mujoco

        env, model, data = self.env, self.model, self.data
        assert model.opt.integrator != mujoco.mjtIntegrator.mjINT_RK4, "a step of RK4 has no two halves"
        velocity_stage = int(mujoco.mjtStage.mjSTAGE_VEL)
        # The controllers call sim.forward; positions and velocities are up to date then.
        env.sim.forward = lambda: mujoco.mj_forwardSkip(model, data, velocity_stage, 0)
        env.timestep += 1
        try:
            for substep in range(int(env.control_timestep / env.model_timestep)):
                mujoco.mj_forward(model, data)
                env._pre_action(action, substep == 0)
                mujoco.mj_step2(model, data)
        finally:
            del env.sim.forward
        env.cur_time += env.control_timestep
        env._post_action(action)

    def solved(self) -> bool:
        """Returns True if the task is solved: its conditions of success hold in the present state."""
        return bool(self.env._check_success())

    def robot_state(self) -> dict[str, np.ndarray]:
        """Returns the state of the robot by name.

        Returns:
            ``joints`` (7,) in radians, ``gripper`` (2,), the positions of the fingers in metres, and the pose of the
            end effector: ``eef_pos`` (3,) in metres and ``eef_quat`` (4,) x, y, z, w.
        """
        data, robot = self.env.sim.data, self.env.robots[0]
        w, x, y, z = data.body_xquat[self.env.sim.model.body_name2id(robot.robot_model.eef_name)]
        return {
            "joints": data.qpos[robot._ref_joint_pos_indexes],
            "gripper": data.qpos[robot._ref_gripper_joint_pos_indexes],
            "eef_pos": data.site_xpos[robot.eef_site_id],
            "eef_quat": np.array([x, y, z, w]),
        }

    def goals_met(self) -> np.ndarray:
        """Returns whether each condition of success holds (n,), in the order of the problem file."""
        env = self.env
        return np.array([bool(env._eval_predicate(state)) for state in env.parsed_problem["goal_state"]])

    def pose_of(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the position (3,) in metres and the quaternion (4,) x, y, z, w of what has the name `name`.

        Args:
            name: Object, fixture, region, or body of the simulated model, such as the door of a microwave.
        """
        import mujoco

        model, data = self.model, self.data
        site = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, name)
        if name not in self.env.obj_body_id and site >= 0:
            quaternion = np.empty(4)
            mujoco.mju_mat2Quat(quaternion, data.site_xmat[site])
            w, x, y, z = quaternion
            return data.site_xpos[site].copy(), np.array([x, y, z, w])
        body = self.env.obj_body_id[name] if name in self.env.obj_body_id else model.body(name).id
        w, x, y, z = data.xquat[body]
        return data.xpos[body].copy(), np.array([x, y, z, w])

    def close(self) -> None:
        """Frees the simulation."""
        self.env.close()


def _numbers(fixture: Any, attribute: str, default: str) -> np.ndarray:
    """Returns the numbers of an attribute of the root body of a fixture's model."""
    return np.array((fixture.get_obj().get(attribute) or default).split(), np.float64)


@contextlib.contextmanager
def _suppressed_output() -> Iterator[None]:
    """Discards what the packages print to standard output and error."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _unset(variable: str) -> Iterator[None]:
    """Removes an environment variable for the duration of the block."""
    value = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[variable] = value
