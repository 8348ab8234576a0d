"""Film of gym: records one episode of a policy as a video, if the environment renders images."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerband.data.types import Learner, VecEnv
from powerband.envs.adapters.by_id import make_gym
from powerband.envs.adapters.wrapping import Wrapping
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.loops.evaluate import Policy, evaluate
from powerband.recipes.gym.config import Config
from powerband.report.media_files import write_video

MAX_FRAMES = 300
"""Frames of a video; of a longer episode only every second one is kept, or every third, and so on."""
FPS = 30


class CannotRender(Exception):
    """The environment does not render images."""


def check_rendering(env_id: str) -> None:
    """Refuses a registered environment whose class states that it has no images.

    Raises:
        CannotRender: Its ``metadata["render_modes"]`` lacks ``rgb_array``.
    """
    import gymnasium

    try:
        entry_point = gymnasium.spec(env_id.rpartition(":")[2]).entry_point
        env_class = (
            gymnasium.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        )
    except Exception:  # not of Gymnasium, which then states nothing
        return
    modes = getattr(env_class, "metadata", {}).get("render_modes")
    if modes is not None and "rgb_array" not in modes:
        raise CannotRender(
            f"{env_id} does not render images. Add 'rgb_array' to metadata['render_modes'], and accept render_mode."
        )


def make_rendered(env_id: str, wrapping: Wrapping, keep: list[Callable[[], Any]], env_kwargs: Mapping[str, Any]) -> Any:
    """Creates one environment that renders images, and adds its function `render` to `keep`."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame prints an error without it
    env = make_gym(env_id, wrapping, {**env_kwargs, "render_mode": "rgb_array"})
    keep.append(env.render)
    return env


def record_episode(
    config: Config,
    learner: Learner,
    make_policy: Callable[[VecEnv], Policy],
    seed: int,
    path: Path,
    device: torch.device | str = "cpu",
) -> Path:
    """Plays one episode and writes its video.

    Args:
        config: Configuration of the run.
        learner: Determines the initial recurrent state.
        make_policy: Function (one environment) -> policy that acts in it.
        seed: Seed of the episode.
        path: File of the video, without its suffix.
        device: Device of the observations.

    Returns:
        Path of the video.

    Raises:
        CannotRender: The environment states that it renders no images.
        Exception: It fails to render, for example because a package is missing.
    """
    check_rendering(config.env_id)
    renders: list[Callable[[], Any]] = []
    kwargs = {"env_id": config.env_id, "wrapping": config.wrap, "keep": renders}
    kwargs["env_kwargs"] = config.env_arguments()
    env = WorkerVecEnv([(make_rendered, kwargs)], num_workers=0, seed=seed, device=device)
    frames: list[np.ndarray] = []
    every, step = max(1, math.ceil((env.spec.max_episode_steps or 0) / MAX_FRAMES)), 0
    policy = make_policy(env)

    def act(obs: Any, carry: Any) -> Any:
        nonlocal step
        if step % every == 0 and len(frames) < MAX_FRAMES:
            frames.append(_even(np.asarray(renders[-1]())))
        step += 1
        return policy(obs, carry)

    try:
        evaluate(env, act, 1, seed, learner.initial_carry(1))
    finally:
        env.close()
    return write_video(frames, path, fps=FPS)


def _even(frame: np.ndarray) -> np.ndarray:
    """Cuts a frame (height, width, 3) to even sides, which videos need."""
    return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2, :3].astype(np.uint8)
