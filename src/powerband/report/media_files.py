"""Media files: writes images and videos from arrays."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def save_image(path: Path | str, image: np.ndarray) -> Path:
    """Writes an image file and creates its folder.

    Args:
        path: Image file; its suffix selects the format.
        image: RGB image of shape (height, width, 3), uint8.

    Returns:
        `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def write_video(frames: Iterable[np.ndarray], path: Path | str, fps: float = 8.0) -> Path:
    """Writes frames as an H.264 video, or as a GIF if no encoder is installed.

    Args:
        frames: At least one RGB image of shape (height, width, 3), uint8; all have the same size, with even sides.
        path: Video file; its folder is created. A suffix other than ``.gif`` becomes ``.mp4``.
        fps: Frames per second.

    Returns:
        Path of the written file.

    Raises:
        ValueError: `frames` is empty.
    """
    frames = list(frames)
    if not frames:
        raise ValueError("frames is empty: a video needs at least one frame")
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
            warnings.warn(
                f"H.264 encoding failed ({error}). Wrote {path} instead. For MP4, run pip install av.", stacklevel=2
            )
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 / fps, loop=0)
    return path


def _write_mp4(frames: list[np.ndarray], path: Path, fps: float) -> None:
    import imageio.v3 as imageio

    with imageio.imopen(path, "w", plugin="pyav") as video:
        video.init_video_stream("libx264", fps=round(fps))
        for frame in frames:
            video.write_frame(frame)
