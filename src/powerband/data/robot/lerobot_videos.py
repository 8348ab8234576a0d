"""Videos of a LeRobotDataset: images of one camera, episode after episode, in files of limited size."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError
from powerband.data.recorded.shards import ShardError

FILES_PER_CHUNK, MAX_VIDEO_MB = 1000, 200
"""LeRobot's limits: files per folder, and megabytes per video."""
CHUNK_FILE_PATH = "chunk-{chunk_index:03d}/file-{file_index:03d}"
VIDEO_PATH = "videos/{video_key}/" + f"{CHUNK_FILE_PATH}.mp4"


@dataclass(frozen=True)
class FilePosition:
    """Position of a file in a LeRobotDataset: the number of its folder (chunk) and its number in this folder."""

    chunk: int = 0
    file: int = 0

    def next(self) -> FilePosition:
        """Returns the position of the next file; a new folder begins when this one is full."""
        if self.file == FILES_PER_CHUNK - 1:
            return FilePosition(self.chunk + 1, 0)
        return FilePosition(self.chunk, self.file + 1)


@dataclass
class VideoWriter:
    """Writes the images of one camera, episode after episode, to the videos of a LeRobotDataset.

    Attributes:
        folder: Folder of the dataset.
        key: Name of the camera's feature in the dataset.
        fps: Frames per second.
        position: Position of the current video.
        episodes: Entries of ``meta/episodes``, one per episode: chunk_index and file_index of the video, from_timestamp
            and to_timestamp in seconds.
        shape: Height and width of the images in pixels.
        frames: Number of frames in the current video.
    """

    folder: Path
    key: str
    fps: float
    position: FilePosition = FilePosition()
    episodes: list[dict[str, Any]] = field(default_factory=list)
    shape: tuple[int, int] = (0, 0)
    frames: int = 0
    _open: Any = None
    _path: Path = Path()

    def begin(self) -> None:
        """Starts an episode, and a new video if the last one has reached its size limit."""
        # The encoder buffers frames: a part of the video, or all of it, may not be on disk yet.
        written = self._path.stat().st_size if self._path.exists() else 0
        if self._open is not None and written > MAX_VIDEO_MB * 2**20:
            self.close()
            self.position, self.frames = self.position.next(), 0
        position = {"chunk_index": self.position.chunk, "file_index": self.position.file}
        self.episodes.append({**position, "from_timestamp": self.frames / self.fps, "to_timestamp": 0.0})

    def add(self, images: np.ndarray) -> None:
        """Appends RGB images (n, height, width, 3) uint8 to the episode.

        Raises:
            ConfigError: A side of the images is odd.
        """
        import av

        rate = Fraction(self.fps).limit_denominator(1001)
        if self._open is None:
            self.shape = height, width = images.shape[1:3]
            if height % 2 or width % 2:
                raise ConfigError(
                    f"The images of {self.key} are {height} x {width}, but a video needs even sides. Record images of "
                    f"another size, such as pixels=128."
                )
            self._path = self.folder / VIDEO_PATH.format(
                video_key=self.key, chunk_index=self.position.chunk, file_index=self.position.file
            )
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open = av.open(str(self._path), "w")
            # Every second frame is a key frame, as in LeRobot, so that access to any frame is fast.
            stream = self._open.add_stream("libx264", rate=rate, options={"crf": "18", "g": "2", "bf": "0"})
            stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream = self._open.streams.video[0]
        for image in images:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = self.frames, 1 / rate
            self._open.mux(stream.encode(frame))
            self.frames += 1
        self.episodes[-1]["to_timestamp"] = self.frames / self.fps

    def close(self) -> None:
        """Finishes the current video."""
        if self._open is not None:
            self._open.mux(self._open.streams.video[0].encode(None))
            self._open.close()
            self._open = None


def read_video_frames(path: Path, start_s: float, count: int, fps: float) -> np.ndarray:
    """Reads consecutive frames of a video.

    Args:
        path: Video file.
        start_s: Time of the first frame, in seconds.
        count: Number of frames.
        fps: Frames per second of the video.

    Returns:
        RGB images (count, height, width, 3) uint8.

    Raises:
        ConfigError: av is not installed.
        ShardError: The video is damaged or too short.
    """
    try:
        import av
    except ImportError:
        raise ConfigError(f"Reading {path} needs the package av. Run pip install av.") from None
    frames: list[np.ndarray] = []
    first = round(start_s * fps)
    try:
        with av.open(str(path)) as video:
            video.streams.video[0].thread_type = "AUTO"
            video.seek(int(start_s * av.time_base))
            for frame in video.decode(video=0):
                if round(frame.time * fps) >= first:
                    frames.append(frame.to_ndarray(format="rgb24"))
                if len(frames) == count:
                    return np.stack(frames)
    except (OSError, av.FFmpegError) as error:
        raise ShardError(f"{path} cannot be read ({error}). Download it again.") from error
    raise ShardError(
        f"{path} ends {count - len(frames)} frames before the end of the episode that starts at {start_s:g} s. "
        f"Download it again."
    )
