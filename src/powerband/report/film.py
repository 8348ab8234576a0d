"""Pictures and films as files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def save_picture(path: Path | str, picture: np.ndarray) -> Path:
    """Writes (H, W, 3) uint8 RGB to an image file, making its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)
    return path


def write_video(frames: Iterable[np.ndarray], path: Path | str, fps: float = 8.0) -> Path:
    """Writes frames as an H.264 film, or as a GIF where no encoder is at hand.

    Args:
        frames: (H, W, 3) uint8 RGB, all of one size with even sides; one at least.
        path: The film; its folder is made. A suffix other than ``.gif`` becomes ``.mp4``.
        fps: Frames a second.

    Returns:
        The file that was written, which has the suffix ``.gif`` in the second case.

    Raises:
        ValueError: There are no frames.
    """
    frames = list(frames)
    if not frames:
        raise ValueError("there are no frames: give at least one")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".gif":
        path = path.with_suffix(".mp4")
        try:
            _write_mp4(frames, path, fps)
            return path
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            path.unlink(missing_ok=True)
            path = path.with_suffix(".gif")
            warnings.warn(f"no H.264 encoder ({error}): wrote {path} instead; `pip install av`", stacklevel=2)
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 / fps, loop=0)
    return path


def _write_mp4(frames: list[np.ndarray], path: Path, fps: float) -> None:
    import imageio.v3 as imageio

    with imageio.imopen(path, "w", plugin="pyav") as film:
        film.init_video_stream("libx264", fps=round(fps))
        for frame in frames:
            film.write_frame(frame)
