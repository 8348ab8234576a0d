"""Kernels: compiles loops over all agents on CPU threads, around the scalar functions that the CUDA kernels share.

The loops are called by name through `run`. Their arguments `s`, `w` and `o` are the arrays of all agents, of the world
and of the sensors; `n` is the index of an agent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit, prange

from powerband.core.machine.cache_stamp import source_checksum
from powerband.envs.numba import hashing
from powerband.envs.numba.dispatch import run_kernel
from powerband.recipes.sketchnav.env import motion, raycaster, sensors, world
from powerband.recipes.sketchnav.env.motion import begin_row, shortest_path_action, step_row
from powerband.recipes.sketchnav.env.raycaster import render_column
from powerband.recipes.sketchnav.env.sensors import add_colour_noise, add_depth_noise, add_pose_noise, frame_key
from powerband.recipes.sketchnav.env.state import Agents
from powerband.recipes.sketchnav.env.world import WorldArrays
from powerband.recipes.sketchnav.plans import cell_codes, distance
from powerband.recipes.sketchnav.plans.episodes import episodes


@hashing.inlined
def write_expert(s, w, n):
    """Writes the action of the expert of agent `n`, which follows the shortest path, to ``s.expert[n]``.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        n: Index of the agent.
    """
    s.expert[n] = shortest_path_action(s, w, n)


NAMES = ("begin", "step", "render", "expert", "depth_noise", "colour_noise", "pose_noise")
# The checksum of everything that the loops are compiled from.
CHECKSUM = source_checksum(hashing, world, motion, raycaster, sensors, distance, episodes, cell_codes)


def _row_loops(checksum: int) -> tuple[Callable[..., None], ...]:
    """Compiles a loop over the agents first, first + 1, ... last - 1 for each of `NAMES`, for the calling thread.

    As a closure, the checksum is part of the key in numba's disk cache.
    """

    @njit(nogil=True, cache=True)
    def begin(s, w, first, last, seed, stride, ended_only):
        for n in range(first, last + 0 * checksum):
            if s.ended[n] or not ended_only:
                begin_row(s, w, n, seed, stride)

    @njit(nogil=True, cache=True)
    def step(s, w, first, last, action):
        for n in range(first, last + 0 * checksum):
            step_row(s, w, n, action[n])

    @njit(nogil=True, cache=True)
    def render(s, w, first, last, rgb, depth, scale, offset, top, ended_only):
        for n in range(first, last + 0 * checksum):
            if s.ended[n] or not ended_only:
                for column in range(w.pixels):
                    render_column(s, w, n, column, rgb, depth, scale, offset, top)

    @njit(nogil=True, cache=True)
    def expert(s, w, first, last):
        for n in range(first, last + 0 * checksum):
            write_expert(s, w, n)

    @njit(nogil=True, cache=True)
    def depth_noise(s, w, first, last, o, seed, metres, depth, scale, offset, ended_only):
        for n in range(first, last + 0 * checksum):
            if s.ended[n] or not ended_only:
                key = frame_key(s, w, n, seed)
                for row in range(depth.shape[2]):
                    for column in range(depth.shape[3]):
                        add_depth_noise(o, key, n, row, column, metres, depth, scale, offset)

    @njit(nogil=True, cache=True)
    def colour_noise(s, w, first, last, o, seed, rgb, ended_only):
        for n in range(first, last + 0 * checksum):
            if s.ended[n] or not ended_only:
                key = frame_key(s, w, n, seed)
                for row in range(rgb.shape[2]):
                    for column in range(rgb.shape[3]):
                        add_colour_noise(o, key, n, row, column, rgb)

    @njit(nogil=True, cache=True)
    def pose_noise(s, w, first, last, o, seed, gps, compass):
        for n in range(first, last + 0 * checksum):
            add_pose_noise(s, w, o, n, seed, gps, compass)

    return begin, step, render, expert, depth_noise, colour_noise, pose_noise


# Global, because a compiled function in the closure of another one would never match the cache.
begin_rows, step_rows, render_rows, expert_rows, depth_rows, colour_rows, pose_rows = SERIAL = _row_loops(CHECKSUM)


@cache
def cpu_loops(parallel: bool) -> dict[str, Callable[..., None]]:
    """Compiles the CPU kernels, each of which loops over agents.

    Args:
        parallel: Run on numba's threads; otherwise on the calling thread.

    Returns:
        Compiled kernels by name: begin, step, render, expert, depth_noise, colour_noise, pose_noise. See `run_kernel`.
    """
    if not parallel:
        return dict(zip(NAMES, SERIAL, strict=True))
    checksum = CHECKSUM

    @njit(nogil=True, cache=True, parallel=True)
    def begin(s, w, parts, seed, stride, ended_only):
        rows = s.heading.shape[0] + 0 * checksum
        for p in prange(parts):
            begin_rows(s, w, p * rows // parts, (p + 1) * rows // parts, seed, stride, ended_only)

    @njit(nogil=True, cache=True, parallel=True)
    def step(s, w, parts, action):
        rows = s.heading.shape[0] + 0 * checksum
        for p in prange(parts):
            step_rows(s, w, p * rows // parts, (p + 1) * rows // parts, action)

    @njit(nogil=True, cache=True, parallel=True)
    def render(s, w, parts, rgb, depth, scale, offset, top, ended_only):
        rows = s.heading.shape[0] + 0 * checksum
        for p in prange(parts):
            render_rows(s, w, p * rows // parts, (p + 1) * rows // parts, rgb, depth, scale, offset, top, ended_only)

    @njit(nogil=True, cache=True, parallel=True)
    def expert(s, w, parts):
        rows = s.heading.shape[0] + 0 * checksum
        for p in prange(parts):
            expert_rows(s, w, p * rows // parts, (p + 1) * rows // parts)

    @njit(nogil=True, cache=True, parallel=True)
    def depth_noise(s, w, parts, o, seed, metres, depth, scale, offset, ended_only):
        rows = s.heading.shape[0] + 0 * checksum
        for p in prange(parts):
            depth_rows(
                s, w, p * rows // parts, (p + 1) * rows // parts, o, seed, metres, depth, scale, offset, ended_only
            )

    @njit(nogil=True, cache=True, parallel=True)
    def colour_noise(s, w, parts, o, seed, rgb, ended_only):
        rows = s.heading.shape[0] + 0 * checksum
        for p in prange(parts):
            colour_rows(s, w, p * rows // parts, (p + 1) * rows // parts, o, seed, rgb, ended_only)

    @njit(nogil=True, cache=True, parallel=True)
    def pose_noise(s, w, parts, o, seed, gps, compass):
        rows = s.heading.shape[0] + 0 * checksum
        for p in prange(parts):
            pose_rows(s, w, p * rows // parts, (p + 1) * rows // parts, o, seed, gps, compass)

    return dict(zip(NAMES, (begin, step, render, expert, depth_noise, colour_noise, pose_noise), strict=True))


def run(name: str, agents: Agents, world: WorldArrays, threads: int, *arguments: Any) -> None:
    """Runs a kernel on all agents, on CPU threads or on CUDA, according to the device of the agents.

    Args:
        name: Name of the kernel: begin, step, render, expert, depth_noise, colour_noise or pose_noise.
        agents: State of all agents, which the kernel reads and writes.
        world: Plans, episodes and lookup tables.
        threads: CPU threads.
        arguments: Arguments of the kernel after the agents and the world; the module `cuda` explains them.
    """
    run_kernel(cpu_loops, "powerband.recipes.sketchnav.env.cuda", name, agents, world, threads, *arguments)
