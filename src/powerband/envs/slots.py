"""Slots: named arrays, one row an environment, in one block of memory that several processes map.

The block is anonymous: it has no name in the file system, so nothing is left behind however a process ends, and it
does not count against a container's small /dev/shm. No torch here: worker processes import this file.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from powerband.envs.spaces import Spaces

Layout = dict[str, tuple[tuple[int, ...], str]]
_ALIGNMENT = 64
"""Bytes; every array starts on a cache line of its own."""


def layout(spaces: Spaces, num_envs: int, num_workers: int, figures: tuple[str, ...], log_steps: int) -> Layout:
    """Arrays that `num_envs` environments and their workers exchange, in the order in which they lie in memory.

    ``log`` holds the actions of the live episodes, `log_steps` of them at most: memory that outlives a worker, of which
    only what is written is taken. It lies last.
    """
    agents = () if spaces.num_agents is None else (spaces.num_agents,)
    obs = {"/".join(("", *path)): ((num_envs, *leaf.shape), leaf.dtype) for path, leaf in spaces.obs_paths()}
    return {
        "action": ((num_envs, *spaces.action.shape), spaces.action.dtype),
        **{f"obs{path}": field for path, field in obs.items()},
        "reward": ((num_envs, *agents), "float32"),
        "terminated": ((num_envs,), "bool"),
        "truncated": ((num_envs,), "bool"),
        **{f"figure/{name}": ((num_envs,), "float32") for name in figures},
        **{f"final_obs{path}": field for path, field in obs.items()},
        "episode": ((num_envs,), "int64"),
        "length": ((num_envs,), "int64"),
        "resumed": ((num_envs,), "bool"),
        "lost": ((num_envs,), "bool"),
        "stepped": ((num_envs,), "int64"),
        "row_in_hand": ((max(1, num_workers),), "int64"),
        "log": ((num_envs, log_steps, *spaces.action.shape), spaces.action.dtype),
    }


class Slots:
    """The arrays of a layout over one mapped block.

    Attributes:
        memory: The block.
        starts: Name -> byte at which its array begins.
        arrays: Name -> array; a write is seen by every process that maps the block.
    """

    def __init__(self, fields: Layout, fd: int | None) -> None:
        """Maps the block behind the file descriptor `fd` (grown to size), or private memory where it is None."""
        starts, end = [], 0
        for shape, dtype in fields.values():
            starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
            end = starts[-1] + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if fd is not None and os.fstat(fd).st_size < end:
            os.ftruncate(fd, end)
        self.memory = mmap.mmap(-1 if fd is None else fd, end)
        self.starts = dict(zip(fields, starts, strict=True))
        self.arrays = {
            name: np.ndarray(shape, dtype, buffer=self.memory, offset=start)
            for start, (name, (shape, dtype)) in zip(starts, fields.items(), strict=True)
        }


def anonymous_file() -> int:
    """File descriptor of an empty file in memory that has no name; the caller closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("powerband-slots")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
