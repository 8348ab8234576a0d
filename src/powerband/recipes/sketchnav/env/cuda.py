"""CUDA kernels around the scalar functions of the CPU loops. Importing this module needs numba-cuda."""

from __future__ import annotations

from typing import Any

from numba import cuda

from powerband.envs.numba.launch_cuda import launch_per_row
from powerband.recipes.sketchnav.env.motion import begin_row, shortest_path_action, step_row
from powerband.recipes.sketchnav.env.raycaster import render_column
from powerband.recipes.sketchnav.env.sensors import add_colour_noise, add_depth_noise, add_pose_noise, frame_key
from powerband.recipes.sketchnav.env.state import Agents
from powerband.recipes.sketchnav.env.world import WorldArrays


@cuda.jit
def begin_agents(s, w, seed, stride, ended_only):
    """Begins episodes, with one thread per agent."""
    n = cuda.grid(1)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        begin_row(s, w, n, seed, stride)


@cuda.jit
def step_agents(s, w, action):
    """Executes one action, with one thread per agent."""
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        step_row(s, w, n, action[n])


@cuda.jit
def render_columns(s, w, rgb, depth, scale, offset, top, ended_only):
    """Renders images, with one thread per column.

    Neighbouring threads render neighbouring columns, so that the memory accesses of a warp are contiguous.
    """
    thread = cuda.grid(1)
    n = thread // w.pixels
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        render_column(s, w, n, thread % w.pixels, rgb, depth, scale, offset, top)


@cuda.jit
def expert_kernel(s, w):
    """Writes the actions of the shortest-path follower, with one thread per agent."""
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        s.expert[n] = shortest_path_action(s, w, n)


@cuda.jit
def depth_noise_kernel(s, w, o, seed, metres, depth, scale, offset, ended_only):
    """Adds noise to depth, with one thread per pixel."""
    side, thread = depth.shape[3], cuda.grid(1)
    n, pixel = thread // (side * side), thread % (side * side)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        key = frame_key(s, w, n, seed)
        add_depth_noise(o, key, n, pixel // side, pixel % side, metres, depth, scale, offset)


@cuda.jit
def colour_noise_kernel(s, w, o, seed, rgb, ended_only):
    """Adds noise to colours, with one thread per pixel."""
    side, thread = rgb.shape[3], cuda.grid(1)
    n, pixel = thread // (side * side), thread % (side * side)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        add_colour_noise(o, frame_key(s, w, n, seed), n, pixel // side, pixel % side, rgb)


@cuda.jit
def pose_noise_kernel(s, w, o, seed, gps, compass):
    """Adds noise to GPS and compass, with one thread per agent."""
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        add_pose_noise(s, w, o, n, seed, gps, compass)


def launch_render(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches one thread per column of each agent's image."""
    launch_per_row(render_columns, world.pixels, agents, world, *arguments)


def launch_depth_noise(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches one thread per pixel of each agent's depth, the fourth argument."""
    launch_per_row(depth_noise_kernel, arguments[3].shape[3] ** 2, agents, world, *arguments)


def launch_colour_noise(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches one thread per pixel of each agent's colours, the third argument."""
    launch_per_row(colour_noise_kernel, arguments[2].shape[3] ** 2, agents, world, *arguments)


LAUNCHES = {
    "begin": lambda agents, world, *arguments: launch_per_row(begin_agents, 1, agents, world, *arguments),
    "step": lambda agents, world, *arguments: launch_per_row(step_agents, 1, agents, world, *arguments),
    "render": launch_render,
    "expert": lambda agents, world, *arguments: launch_per_row(expert_kernel, 1, agents, world, *arguments),
    "depth_noise": launch_depth_noise,
    "colour_noise": launch_colour_noise,
    "pose_noise": lambda agents, world, *arguments: launch_per_row(pose_noise_kernel, 1, agents, world, *arguments),
}
"""Launchers by the names of the CPU loops."""
