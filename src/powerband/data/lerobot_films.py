"""Films of a LeRobotDataset: pictures of one camera, episode after episode, in files of a bounded size."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from powerband.core.flags import ConfigError
from powerband.data.shards import ShardError

FILES_A_CHUNK, FILM_MB = 1000, 200
"""LeRobot's limits: files of a folder, and what a film may hold."""
PLACED = "chunk-{chunk_index:03d}/file-{file_index:03d}"
FILM_PATH = "videos/{video_key}/" + f"{PLACED}.mp4"


@dataclass(frozen=True)
class Place:
    """Where the next file goes."""

    chunk: int = 0
    file: int = 0

    def next(self) -> Place:
        return Place(self.chunk + 1, 0) if self.file == FILES_A_CHUNK - 1 else Place(self.chunk, self.file + 1)


@dataclass
class Film:
    """The films of one camera, one after the other."""

    folder: Path
    key: str
    fps: float
    place: Place = Place()
    places: list[dict[str, Any]] = field(default_factory=list)
    shape: tuple[int, int] = (0, 0)
    frames: int = 0
    _open: Any = None
    _path: Path = Path()

    def begin(self) -> None:
        """An episode begins here; a new film, where the last has grown long enough."""
        # What the encoder holds back is not on disk yet, nor perhaps the file.
        written = self._path.stat().st_size if self._path.exists() else 0
        if self._open is not None and written > FILM_MB * 2**20:
            self.close()
            self.place, self.frames = self.place.next(), 0
        told = {"chunk_index": self.place.chunk, "file_index": self.place.file}
        self.places.append({**told, "from_timestamp": self.frames / self.fps, "to_timestamp": 0.0})

    def add(self, pictures: np.ndarray) -> None:
        """Appends (n, H, W, 3) uint8 to the episode."""
        import av

        rate = Fraction(self.fps).limit_denominator(1001)
        if self._open is None:
            self.shape = height, width = pictures.shape[1:3]
            if height % 2 or width % 2:
                raise ConfigError(f"pictures of {self.key} are {height} x {width}: films need even sides.")
            at = {"video_key": self.key, "chunk_index": self.place.chunk, "file_index": self.place.file}
            self._path = self.folder / FILM_PATH.format(**at)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open = av.open(str(self._path), "w")
            # A key frame every other frame, as LeRobot has it: any frame is found at once.
            stream = self._open.add_stream("libx264", rate=rate, options={"crf": "18", "g": "2", "bf": "0"})
            stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream = self._open.streams.video[0]
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = self.frames, 1 / rate
            self._open.mux(stream.encode(frame))
            self.frames += 1
        self.places[-1]["to_timestamp"] = self.frames / self.fps

    def close(self) -> None:
        """Ends the film under way."""
        if self._open is not None:
            self._open.mux(self._open.streams.video[0].encode(None))
            self._open.close()
            self._open = None


def film_part(path: Path, begin_s: float, count: int, fps: float) -> np.ndarray:
    """(count, H, W, 3) uint8: frames of a film from `begin_s` on."""
    try:
        import av
    except ImportError:
        raise ConfigError(f"{path} is a film. Install what reads it: pip install av") from None
    frames: list[np.ndarray] = []
    first = round(begin_s * fps)
    try:
        with av.open(str(path)) as film:
            film.streams.video[0].thread_type = "AUTO"
            film.seek(int(begin_s * av.time_base))
            for frame in film.decode(video=0):
                if round(frame.time * fps) >= first:
                    frames.append(frame.to_ndarray(format="rgb24"))
                if len(frames) == count:
                    return np.stack(frames)
    except (OSError, av.FFmpegError) as error:
        raise ShardError(f"{path} cannot be read ({error}): download it again.") from error
    raise ShardError(f"{path} ends {count - len(frames)} frames before the episode that begins at {begin_s:g} s does.")
