"""LiberoEnv: one task of LIBERO as a Gymnasium environment that takes chunks of actions. No torch here.

The package renders both cameras with shadows, reflections and multisampling in every step. Here they are off, and only
what a policy will look at is rendered: the newest frames at the end of a chunk.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from powerband.envs.libero.stepping import act
from powerband.envs.libero.tasks import INSTALL, NotInstalled, starts_of, task_named
from powerband.envs.libero.view import Quality, View

CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
"""Camera -> its name in the simulator."""
HZ = 20.0
"""Actions a second."""
ACTION = 7
"""Entries of an action: end-effector's shift and turn, gripper (1 closes)."""
OPEN = -1.0
TRIES = 100
"""Draws of the objects' places at most."""
Starts = Literal["drawn", "published", "given"]


class LiberoEnv:
    """One simulation of one task.

    Observations: ``pictures`` (frames, cameras, pixels, pixels, 3) uint8, upright, oldest first; ``made`` (1,) steps of
    the episode so far (frames from before it are black); ``joints`` (7,) rad, ``gripper`` (2,) metres of each finger,
    ``eef_pos`` (3,) metres, ``eef_quat`` (4,) xyzw; ``poses`` (n, 3) metres of what was asked for. Actions (chunk, 7)
    in [-1, 1]. Reward 1 where the task is solved, which ends the episode; the other end is the time limit.

    Args:
        benchmark, task: Which task, by number, name or instruction.
        chunk: Actions of one step; those after the task is solved are not taken.
        frames: Newest frames of each camera in an observation.
        pixels: Side of a frame; 0 renders nothing.
        cameras: Of `CAMERAS`.
        max_steps: Actions of an episode at most.
        starts: "drawn": as the task places its objects, by the seed of the reset. "published": LIBERO's own initial
            states in turn. "given": drawn by `seeds` in turn, whatever the reset is asked for.
        first_start, start_stride: Where the turn begins, and how many states or seeds on the next episode's is.
        seeds: With starts="given".
        settle: Actions without motion before the episode: objects come to rest.
        quality: As `View`.
        poses: Objects and regions whose place is observed, for scripted policies.
        keep_frames: Render after every action, and keep the frames of the live episode in `film`.

    Raises:
        NotInstalled: There is no LIBERO.
        ConfigError: No such task.
    """

    def __init__(
        self,
        benchmark: str,
        task: str,
        chunk: int = 16,
        frames: int = 2,
        pixels: int = 128,
        cameras: tuple[str, ...] = tuple(CAMERAS),
        max_steps: int = 300,
        starts: Starts = "drawn",
        first_start: int = 0,
        start_stride: int = 1,
        seeds: tuple[int, ...] = (),
        settle: int = 10,
        quality: Quality = "coarse",
        poses: tuple[str, ...] = (),
        keep_frames: bool = False,
    ) -> None:
        from gymnasium.spaces import Box, Dict

        self.task = task_named(benchmark, task)
        self.chunk, self.frames, self.pixels, self.cameras = chunk, frames, pixels, tuple(cameras)
        self.max_steps, self.settle, self.quality, self.poses = max_steps, settle, quality, tuple(poses)
        self.starts, self.next_start, self.start_stride = starts, first_start, start_stride
        self.states = starts_of(self.task) if starts == "published" else []
        self.seeds = tuple(seeds)
        assert (starts == "given") == bool(seeds), "seeds go with starts='given'"
        self.keep_frames, self.film = keep_frames, []
        self.env = _simulator(str(self.task.problem))
        self.max_episode_steps = math.ceil(max_steps / chunk)
        self.renderer: str | None = None
        self._view: Any = None
        self._pictures = np.zeros((frames, len(self.cameras), pixels, pixels, 3), np.uint8)
        self.action_space = Box(-1.0, 1.0, (chunk, ACTION), np.float32)
        spaces = {name: Box(-np.inf, np.inf, shape, np.float32) for name, shape in self._shapes().items()}
        if pixels:
            spaces["pictures"] = Box(0, 255, self._pictures.shape, np.uint8)
        self.observation_space = Dict(spaces)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {"joints": (7,), "gripper": (2,), "eef_pos": (3,), "eef_quat": (4,), "made": (1,)}
        return shapes | ({"poses": (len(self.poses), 3)} if self.poses else {})

    # -- Gymnasium --------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, np.ndarray], dict]:
        """Begins an episode; the same `seed` gives the same one, and with published states only the fixtures' place."""
        turn, self.next_start = self.next_start, self.next_start + self.start_stride
        with _numpy_seeded(self.seeds[turn % len(self.seeds)] if self.seeds else seed):
            _placed(self.env)
        if self.states:
            self.env.sim.set_state_from_flattened(self.states[turn % len(self.states)])
            self.env.sim.forward()
        still = np.zeros(ACTION)
        still[-1] = OPEN
        for _ in range(self.settle):
            act(self.env, still)
        self.made, self.film = 0, []
        self._pictures[:] = 0
        self._look()
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, float]]:
        """Takes the actions (chunk, 7) one after the other until the task is solved or time is up.

        ``info``: success, and steps: actions of the episode so far.
        """
        solved, count = False, min(self.chunk, self.max_steps - self.made)
        for place in range(count):
            act(self.env, np.asarray(action[place], np.float64))
            self.made += 1
            solved = bool(self.env._check_success())
            last = solved or place == count - 1
            if self.pixels and (last or self.keep_frames or place >= count - self.frames):
                self._look()
            if last:
                break
        truncated = not solved and self.made >= self.max_steps
        return self._seen(), float(solved), solved, truncated, {"success": float(solved), "steps": float(self.made)}

    def close(self) -> None:
        """Frees the GL context and the simulator."""
        if self._view is not None:
            self._view.close()
            self._view = None
        self.env.close()

    # -- what is seen -----------------------------------------------------------------------------------------------

    def place_of(self, name: str) -> np.ndarray:
        """(3,) metres: where an object, a fixture or a region is."""
        if name in self.env.obj_body_id:
            return self.env.sim.data.body_xpos[self.env.obj_body_id[name]].copy()
        return self.env.sim.data.get_site_xpos(name).copy()

    def render(self) -> np.ndarray:
        """All cameras side by side, (pixels, cameras * pixels, 3) uint8."""
        return np.concatenate(list(self._rendered()), 1)

    def _seen(self) -> dict[str, np.ndarray]:
        data, robot = self.env.sim.data, self.env.robots[0]
        w, x, y, z = data.body_xquat[self.env.sim.model.body_name2id(robot.robot_model.eef_name)]
        seen = {
            "joints": data.qpos[robot._ref_joint_pos_indexes],
            "gripper": data.qpos[robot._ref_gripper_joint_pos_indexes],
            "eef_pos": data.site_xpos[robot.eef_site_id],
            "eef_quat": np.array([x, y, z, w]),
            "made": np.array([self.made]),
        }
        if self.poses:
            seen["poses"] = np.stack([self.place_of(name) for name in self.poses])
        seen = {name: np.asarray(value, np.float32).copy() for name, value in seen.items()}
        return {**seen, "pictures": self._pictures.copy()} if self.pixels else seen

    def _look(self) -> None:
        """Renders the newest frames. Where the task was solved within a chunk, those before it are from its start."""
        if not self.pixels:
            return
        now = np.stack(list(self._rendered()))
        if self.keep_frames:
            self.film.append(np.concatenate(list(now), 1))
        self._pictures[:-1] = self._pictures[1:]
        self._pictures[-1] = now

    def _rendered(self) -> Iterator[np.ndarray]:
        if self._view is None:
            self._view = View(self.env.sim, self.pixels, self.quality)
            self.renderer = self._view.device
        return (self._view.see(CAMERAS[camera]) for camera in self.cameras)


def make_libero(**words: Any) -> LiberoEnv:
    """For worker processes: one `LiberoEnv`."""
    return LiberoEnv(**words)


def _simulator(problem: str) -> Any:
    """robosuite's environment of a problem: no cameras, no observables; we read the state and render ourselves."""
    try:
        with (
            _quiet(),
            _hidden("MUJOCO_EGL_DEVICE_ID"),
        ):  # robosuite refuses numbers that are not CUDA's; EGL has its own
            from libero.libero.envs import env_wrapper
    except ImportError as missing:
        raise NotInstalled(f"LIBERO cannot be imported ({missing}). Write {INSTALL}.") from missing
    words = {"use_camera_obs": False, "has_offscreen_renderer": False, "has_renderer": False, "ignore_done": True}
    with _quiet():
        env = env_wrapper.ControlEnv(problem, control_freq=HZ, hard_reset=False, **words).env
    for name in list(env._observables):  # each is computed 25 times a step, and nobody reads them
        env.modify_observable(name, "enabled", False)
        env.modify_observable(name, "active", False)
    return env


def _placed(env: Any) -> None:
    """Resets robosuite's environment; where its objects do not fit as they were drawn, they are drawn again."""
    from robosuite.utils.errors import RandomizationError

    for attempt in range(TRIES):
        try:
            with _quiet():
                env.reset()
            return
        except RandomizationError:
            if attempt == TRIES - 1:
                raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the packages' remarks on standard output and error."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _hidden(variable: str) -> Iterator[None]:
    """Without an environment variable."""
    value = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[variable] = value


@contextlib.contextmanager
def _numpy_seeded(seed: int | None) -> Iterator[None]:
    """LIBERO draws where things stand from numpy's global state: it is put back as it was."""
    if seed is None:
        yield
        return
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)
