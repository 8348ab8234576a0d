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
from powerband.recipes.sketchnav.plans import cell_codes, distance, episodes


@hashing.inlined
def write_expert(s, w, n):
    """Writes the action of the shortest-path follower of agent `n` to ``s.expert[n]``.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        n: Index of the agent.
    """
    s.expert[n] = shortest_path_action(s, w, n)


@cache
def cpu_loops(parallel: bool) -> dict[str, Callable[..., None]]:
    """Compiles the CPU kernels, each of which loops over all agents.

    Args:
        parallel: Run on numba's threads; otherwise on the calling thread.

    Returns:
        Compiled kernels by name: begin, step, render, expert, depth_noise, colour_noise, pose_noise.
    """
    modules = (hashing, world, motion, raycaster, sensors, distance, episodes, cell_codes)
    stamp = 2 * source_checksum(*modules) + parallel

    @njit(nogil=True, cache=True, parallel=parallel)
    def begin(s, w, seed, stride, ended_only):
        for n in prange(s.heading.shape[0] + 0 * stamp):
            if s.ended[n] or not ended_only:
                begin_row(s, w, n, seed, stride)

    @njit(nogil=True, cache=True, parallel=parallel)
    def step(s, w, action):
        for n in prange(s.heading.shape[0] + 0 * stamp):
            step_row(s, w, n, action[n])

    @njit(nogil=True, cache=True, parallel=parallel)
    def render(s, w, rgb, depth, scale, offset, top, ended_only):
        for n in prange(s.heading.shape[0] + 0 * stamp):
            if s.ended[n] or not ended_only:
                for column in range(w.pixels):
                    render_column(s, w, n, column, rgb, depth, scale, offset, top)

    @njit(nogil=True, cache=True, parallel=parallel)
    def expert(s, w):
        for n in prange(s.heading.shape[0] + 0 * stamp):
            write_expert(s, w, n)

    @njit(nogil=True, cache=True, parallel=parallel)
    def depth_noise(s, w, o, seed, metres, depth, scale, offset, ended_only):
        for n in prange(s.heading.shape[0] + 0 * stamp):
            if s.ended[n] or not ended_only:
                key = frame_key(s, w, n, seed)
                for row in range(depth.shape[2]):
                    for column in range(depth.shape[3]):
                        add_depth_noise(o, key, n, row, column, metres, depth, scale, offset)

    @njit(nogil=True, cache=True, parallel=parallel)
    def colour_noise(s, w, o, seed, rgb, ended_only):
        for n in prange(s.heading.shape[0] + 0 * stamp):
            if s.ended[n] or not ended_only:
                key = frame_key(s, w, n, seed)
                for row in range(rgb.shape[2]):
                    for column in range(rgb.shape[3]):
                        add_colour_noise(o, key, n, row, column, rgb)

    @njit(nogil=True, cache=True, parallel=parallel)
    def pose_noise(s, w, o, seed, gps, compass):
        for n in prange(s.heading.shape[0] + 0 * stamp):
            add_pose_noise(s, w, o, n, seed, gps, compass)

    return {
        "begin": begin,
        "step": step,
        "render": render,
        "expert": expert,
        "depth_noise": depth_noise,
        "colour_noise": colour_noise,
        "pose_noise": pose_noise,
    }


def run(name: str, agents: Agents, world: WorldArrays, threads: int, *arguments: Any) -> None:
    """Runs a kernel on all agents, on CPU threads or on CUDA, according to the device of the agents.

    Args:
        name: Name of the kernel: begin, step, render, expert, depth_noise, colour_noise or pose_noise.
        agents: State of all agents, which the kernel reads and writes.
        world: Plans, episodes and lookup tables.
        threads: CPU threads.
        arguments: Remaining arguments of the kernel.
    """
    run_kernel(cpu_loops, "powerband.recipes.sketchnav.env.cuda", name, agents, world, threads, *arguments)
