"""LiberoEnv: one task of LIBERO as a Gymnasium environment whose actions are chunks. No torch here.

LIBERO renders both cameras with shadows, reflections and multisampling in every step. Here these effects are off by
default, and only the frames of an observation are rendered: the newest ones at the end of a chunk.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from powerband.recipes.libero.env.renderer import LiberoRenderer
from powerband.recipes.libero.env.robosuite_simulator import RobosuiteSimulator
from powerband.recipes.libero.env.tasks import find_task, published_states
from powerband.recipes.libero.settings import Quality

CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
"""Name of a camera here -> its name in the simulator."""
HZ = 20.0
"""Actions per second."""
ACTION = 7
"""Entries of an action: translation and rotation of the end effector, and the gripper (1 closes)."""
OPEN = -1.0
"""Gripper entry of an action that opens the gripper."""
Starts = Literal["drawn", "published", "given"]


class LiberoEnv:
    """One simulation of one task.

    Observations: ``images`` (frames, cameras, pixels, pixels, 3) uint8, upright, oldest first, black for times before
    the episode; ``step_count`` (1,), the number of actions in the episode so far; ``joints`` (7,) rad; ``gripper``
    (2,), metres of each finger; ``eef_pos`` (3,) metres and ``eef_quat`` (4,) x, y, z, w of the end effector. If
    `poses` names n things, also ``poses`` (n, 3) metres and ``rotations`` (n, 4) x, y, z, w of these, and ``goals_met``
    (m,), 1 for each condition of success that holds. Actions: (chunk, 7) in [-1, 1]. The reward is 1 when the task is
    solved, which terminates the episode; the time limit truncates it.

    Args:
        benchmark: Benchmark of the task.
        task: Number, name or instruction of the task.
        chunk: Number of actions in one step; actions after the task is solved are not executed.
        frames: Number of newest frames of each camera in an observation.
        pixels: Side of a frame in pixels; 0 renders nothing.
        cameras: Names from `CAMERAS`.
        max_steps: Largest number of actions of an episode.
        starts: Initial states. "drawn": random, by the seed of the reset. "published": LIBERO's own, in order.
            "given": random by `seeds`, in order, whatever the seed of the reset.
        first_start: Index of the first state or seed, for "published" and "given".
        start_stride: Difference of the indices of successive episodes. Episode n has the index
            ``first_start + n * start_stride``.
        seeds: Seeds for starts="given".
        settle_steps: Actions without motion before the episode, until the objects have come to rest.
        quality: Rendering quality; see `LiberoRenderer`.
        poses: Names of objects, regions and bodies whose poses are observed, for scripted policies.
        record_frames: Render after every action, and store the frames of the episode in `episode_frames`.

    Attributes:
        episode_frames: With `record_frames`, the frames of the current episode, cameras side by side.
        view: Renderer; None until the first frame.

    Raises:
        LiberoNotInstalled: LIBERO is not installed.
        ConfigError: The task is unknown.
    """

    starts_by_episode = True

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
        settle_steps: int = 10,
        quality: Quality = "coarse",
        poses: tuple[str, ...] = (),
        record_frames: bool = False,
    ) -> None:
        from gymnasium.spaces import Box, Dict, Space

        self.task = find_task(benchmark, task)
        self.chunk, self.frames, self.pixels, self.cameras = chunk, frames, pixels, tuple(cameras)
        self.max_steps, self.settle_steps, self.quality, self.poses = max_steps, settle_steps, quality, tuple(poses)
        self.starts, self.first_start, self.start_stride, self.episode = starts, first_start, start_stride, -1
        self.states = published_states(self.task) if starts == "published" else []
        self.seeds = tuple(seeds)
        assert (starts == "given") == bool(seeds), "seeds go with starts='given'"
        self.record_frames = record_frames
        self.episode_frames: list[np.ndarray] = []
        self.simulator = RobosuiteSimulator(str(self.task.problem), HZ)
        self.max_episode_steps = math.ceil(max_steps / chunk)
        self.step_count = 0
        self.renderer: str | None = None
        self.view: LiberoRenderer | None = None
        self._images = np.zeros((frames, len(self.cameras), pixels, pixels, 3), np.uint8)
        self.action_space = Box(-1.0, 1.0, (chunk, ACTION), np.float32)
        shapes: dict[str, tuple[int, ...]] = {
            "joints": (7,),
            "gripper": (2,),
            "eef_pos": (3,),
            "eef_quat": (4,),
            "step_count": (1,),
        }
        if self.poses:
            number = len(self.poses)
            shapes |= {"poses": (number, 3), "rotations": (number, 4), "goals_met": (len(self.task.goals),)}
        spaces: dict[str, Space] = {name: Box(-np.inf, np.inf, shape, np.float32) for name, shape in shapes.items()}
        if pixels:
            spaces["images"] = Box(0, 255, self._images.shape, np.uint8)
        self.observation_space = Dict(spaces)

    # -- Gymnasium --------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Starts an episode; returns its first observation and an empty info.

        The seed determines the initial state. With starts="published", it determines the fixtures only; with
        starts="given", it is ignored. ``options["episode"]`` is the index of the episode, which selects a published or
        given start; without it, episodes count on from the last reset.
        """
        self.episode = int((options or {}).get("episode", self.episode + 1))
        index = self.first_start + self.episode * self.start_stride
        with _numpy_seed(self.seeds[index % len(self.seeds)] if self.seeds else seed):
            self.simulator.reset()
        if self.states:
            self.simulator.set_state(self.states[index % len(self.states)])
        rest = np.zeros(ACTION)
        rest[-1] = OPEN
        for _ in range(self.settle_steps):
            self.simulator.step(rest)
        self.step_count, self.episode_frames = 0, []
        self._images[:] = 0
        self._capture()
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, float]]:
        """Executes the actions (chunk, 7) in order until the task is solved or the time limit is reached.

        Returns observation, reward, terminated, truncated and info, which has ``success`` (0 or 1) and ``steps``, the
        number of actions of the episode so far.
        """
        solved, count = False, min(self.chunk, self.max_steps - self.step_count)
        for number in range(count):
            self.simulator.step(np.asarray(action[number], np.float64))
            self.step_count += 1
            solved = self.simulator.solved()
            last = solved or number == count - 1
            if self.pixels and (last or self.record_frames or number >= count - self.frames):
                self._capture()
            if last:
                break
        truncated = not solved and self.step_count >= self.max_steps
        info = {"success": float(solved), "steps": float(self.step_count)}
        return self._observe(), float(solved), solved, truncated, info

    def render(self) -> np.ndarray:
        """Returns all cameras side by side, (pixels, cameras * pixels, 3) uint8."""
        return np.concatenate(list(self._rendered()), 1)

    def close(self) -> None:
        """Frees the OpenGL context and the simulator."""
        if self.view is not None:
            self.view.close()
            self.view = None
        self.simulator.close()

    # -- observations -----------------------------------------------------------------------------------------------

    def _observe(self) -> dict[str, np.ndarray]:
        values = {**self.simulator.robot_state(), "step_count": np.array([self.step_count])}
        if self.poses:
            poses = [self.simulator.pose_of(name) for name in self.poses]
            values["poses"], values["rotations"] = (np.stack(part) for part in zip(*poses, strict=True))
            values["goals_met"] = self.simulator.goals_met()
        obs = {name: np.asarray(value, np.float32).copy() for name, value in values.items()}
        return {**obs, "images": self._images.copy()} if self.pixels else obs

    def _capture(self) -> None:
        """Renders the newest frame of each camera and drops the oldest.

        If the task is solved early in a chunk, the older frames show the chunk's start.
        """
        if not self.pixels:
            return
        frames = np.stack(list(self._rendered()))
        if self.record_frames:
            self.episode_frames.append(np.concatenate(list(frames), 1))
        self._images[:-1] = self._images[1:]
        self._images[-1] = frames

    def _rendered(self) -> Iterator[np.ndarray]:
        if self.view is None:
            self.view = LiberoRenderer(self.simulator.model, self.simulator.data, self.pixels, self.quality)
            self.renderer = self.view.device
        view = self.view
        return (view.render(CAMERAS[camera]) for camera in self.cameras)


def make_libero_env(**kwargs: Any) -> LiberoEnv:
    """Creates a `LiberoEnv` with the arguments `kwargs`; worker processes import this function by name."""
    return LiberoEnv(**kwargs)


@contextlib.contextmanager
def _numpy_seed(seed: int | None) -> Iterator[None]:
    """Seeds numpy's global generator, which LIBERO uses to place objects, and restores it at the end of the block.

    If `seed` is None, the generator is neither seeded nor restored.
    """
    if seed is None:
        yield
        return
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(state)
