"""SharedArrays: named arrays, one row per environment, in one block of memory that several processes map.

The block is anonymous. It has no name in the file system, so no process can leave it behind, and it does not count
against the small /dev/shm of a container. This file imports no torch, because worker processes import it.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from powerband.envs.workers.spaces import Spaces

Layout = dict[str, tuple[tuple[int, ...], str]]
"""Name of an array -> (shape, dtype)."""
_ALIGNMENT = 64
"""Bytes: every array starts on a new cache line."""


def layout(spaces: Spaces, num_envs: int, num_workers: int, episode_metrics: tuple[str, ...], log_steps: int) -> Layout:
    """Returns the layout of the shared memory: name -> (shape, dtype) of each array, in the order of memory.

    Most arrays have one row per environment: actions, observations, rewards, flags and counters. ``log`` contains the
    actions of the current episodes, and remains if a worker dies. It is the last array, because the system allocates
    only those of its pages that are written.

    Args:
        spaces: Spaces of one environment.
        num_envs: Number of environments.
        num_workers: Number of workers.
        episode_metrics: Names of metrics that are read at the end of an episode.
        log_steps: Largest number of logged actions per episode.
    """
    agents = () if spaces.num_agents is None else (spaces.num_agents,)
    obs = {"/".join(("", *path)): ((num_envs, *leaf.shape), leaf.dtype) for path, leaf in spaces.obs_paths()}
    return {
        "action": ((num_envs, *spaces.action.shape), spaces.action.dtype),
        **{f"obs{path}": field for path, field in obs.items()},
        "reward": ((num_envs, *agents), "float32"),
        "terminated": ((num_envs,), "bool"),
        "truncated": ((num_envs,), "bool"),
        **{f"metric/{name}": ((num_envs,), "float32") for name in episode_metrics},
        **{f"final_obs{path}": field for path, field in obs.items()},
        "episode": ((num_envs,), "int64"),
        "length": ((num_envs,), "int64"),
        "resumed": ((num_envs,), "bool"),
        "lost": ((num_envs,), "bool"),
        "stepped": ((num_envs,), "int64"),
        "active_row": ((max(1, num_workers),), "int64"),
        "log": ((num_envs, log_steps, *spaces.action.shape), spaces.action.dtype),
    }


class SharedArrays:
    """Named numpy arrays in one block of memory that several processes can map.

    Args:
        fields: Name -> (shape, dtype) of the arrays, a result of `layout`.
        fd: File descriptor of the block, which grows to the needed size; None uses private memory of this process.

    Attributes:
        memory: The mapped block.
        starts: Name -> offset of its array in bytes.
        arrays: Name -> array; a write is visible to every process that maps the block.
    """

    def __init__(self, fields: Layout, fd: int | None) -> None:
        offsets: list[int] = []
        end = 0
        for shape, dtype in fields.values():
            offsets.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
            end = offsets[-1] + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if fd is not None and os.fstat(fd).st_size < end:
            os.ftruncate(fd, end)
        self.memory = mmap.mmap(-1 if fd is None else fd, end)
        self.starts = dict(zip(fields, offsets, strict=True))
        self.arrays = {
            name: np.ndarray(shape, dtype, buffer=self.memory, offset=offset)
            for offset, (name, (shape, dtype)) in zip(offsets, fields.items(), strict=True)
        }


def anonymous_file() -> int:
    """Opens an empty file without a name and returns its descriptor, which the caller closes.

    It is in memory if the system supports this, as Linux does; otherwise it is a temporary file.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("powerband-slots")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
