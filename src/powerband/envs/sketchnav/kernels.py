"""Steps and pictures of all agents, on CPU threads or on CUDA, around the same scalar functions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
from numba import njit, prange
from torch import Tensor

from powerband.envs import hashing
from powerband.envs.arrays import device_array
from powerband.envs.compiled import stamp

from . import distance, episodes, motion, sensors, surfaces, view, world
from .motion import begin_row, follow, step_row
from .sensors import blur_colours, blur_depth, blur_pose, frame_key
from .state import Agents
from .view import see_column
from .world import WorldArrays


@hashing.inlined
def ask(s, w, n):
    """Writes what the follower does."""
    s.expert[n] = follow(s, w, n)


@cache
def cpu_loops(parallel: bool) -> dict[str, Any]:
    """Loops over agents by name, on numba's threads where `parallel`, else on the thread that calls.

    As of `envs.uav.kernels.cpu_loops`: functions write whatever a loop writes.
    """
    made_of = 2 * stamp(hashing, world, motion, view, sensors, distance, episodes, surfaces) + parallel

    @njit(nogil=True, cache=True, parallel=parallel)
    def begin(s, w, seed, stride, ended_only):
        for n in prange(s.heading.shape[0] + 0 * made_of):
            if s.ended[n] or not ended_only:
                begin_row(s, w, n, seed, stride)

    @njit(nogil=True, cache=True, parallel=parallel)
    def step(s, w, action):
        for n in prange(s.heading.shape[0] + 0 * made_of):
            step_row(s, w, n, action[n])

    @njit(nogil=True, cache=True, parallel=parallel)
    def see(s, w, rgb, depth, scale, offset, top, ended_only):
        for n in prange(s.heading.shape[0] + 0 * made_of):
            if s.ended[n] or not ended_only:
                for column in range(w.pixels):
                    see_column(s, w, n, column, rgb, depth, scale, offset, top)

    @njit(nogil=True, cache=True, parallel=parallel)
    def expert(s, w):
        for n in prange(s.heading.shape[0] + 0 * made_of):
            ask(s, w, n)

    @njit(nogil=True, cache=True, parallel=parallel)
    def depths(s, w, o, seed, metres, depth, scale, offset, ended_only):
        for n in prange(s.heading.shape[0] + 0 * made_of):
            if s.ended[n] or not ended_only:
                key = frame_key(s, w, n, seed)
                for row in range(depth.shape[2]):
                    for column in range(depth.shape[3]):
                        blur_depth(o, key, n, row, column, metres, depth, scale, offset)

    @njit(nogil=True, cache=True, parallel=parallel)
    def colours(s, w, o, seed, rgb, ended_only):
        for n in prange(s.heading.shape[0] + 0 * made_of):
            if s.ended[n] or not ended_only:
                key = frame_key(s, w, n, seed)
                for row in range(rgb.shape[2]):
                    for column in range(rgb.shape[3]):
                        blur_colours(o, key, n, row, column, rgb)

    @njit(nogil=True, cache=True, parallel=parallel)
    def pose(s, w, o, seed, gps, compass):
        for n in prange(s.heading.shape[0] + 0 * made_of):
            blur_pose(s, w, o, n, seed, gps, compass)

    loops = (begin, step, see, expert, depths, colours, pose)
    return {loop.__name__: loop for loop in loops}


def run(name: str, agents: Agents, world: WorldArrays, threads: int, *arguments: Any) -> None:
    """Runs one of the loops on all agents, on CPU threads or on torch's current stream.

    Args:
        name: begin, step, see, expert, depths, colours or pose.
        agents: Read and written.
        world: Tables on the device of the agents.
        threads: CPU threads.
        arguments: As the loop takes them; tensors are handed over as arrays.
    """
    given = [device_array(value) if isinstance(value, Tensor) else value for value in arguments]
    if agents.heading.device.type == "cpu":
        if threads > 1:
            numba.set_num_threads(threads)
        cpu_loops(threads > 1)[name](agents.arrays, world, *given)
    else:
        from . import cuda

        cuda.LAUNCHES[name](agents, world, *given)
