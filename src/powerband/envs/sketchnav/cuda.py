"""The CUDA kernels around the functions of the CPU loops. Import it only where numba-cuda is installed."""

from __future__ import annotations

from typing import Any

from numba import cuda

from powerband.envs.cuda_launch import launch

from .motion import begin_row, follow, step_row
from .sensors import blur_colours, blur_depth, blur_pose, frame_key
from .state import Agents
from .view import see_column
from .world import WorldArrays


@cuda.jit
def begin_agents(s, w, seed, stride, ended_only):
    """One thread an agent."""
    n = cuda.grid(1)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        begin_row(s, w, n, seed, stride)


@cuda.jit
def step_agents(s, w, action):
    """One thread an agent."""
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        step_row(s, w, n, action[n])


@cuda.jit
def see_columns(s, w, rgb, depth, scale, offset, top, ended_only):
    """One thread a column; neighbours in a warp are neighbours in the picture, so that their pixels lie together."""
    thread = cuda.grid(1)
    n = thread // w.pixels
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        see_column(s, w, n, thread % w.pixels, rgb, depth, scale, offset, top)


@cuda.jit
def ask_experts(s, w):
    """One thread an agent."""
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        s.expert[n] = follow(s, w, n)


@cuda.jit
def blur_depths(s, w, o, seed, metres, depth, scale, offset, ended_only):
    """One thread a pixel."""
    side, thread = depth.shape[3], cuda.grid(1)
    n, pixel = thread // (side * side), thread % (side * side)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        key = frame_key(s, w, n, seed)
        blur_depth(o, key, n, pixel // side, pixel % side, metres, depth, scale, offset)


@cuda.jit
def blur_pictures(s, w, o, seed, rgb, ended_only):
    """One thread a pixel."""
    side, thread = rgb.shape[3], cuda.grid(1)
    n, pixel = thread // (side * side), thread % (side * side)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        blur_colours(o, frame_key(s, w, n, seed), n, pixel // side, pixel % side, rgb)


@cuda.jit
def blur_poses(s, w, o, seed, gps, compass):
    """One thread an agent."""
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        blur_pose(s, w, o, n, seed, gps, compass)


def per_agent(kernel: Any, each: int, agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Runs `kernel` with `each` threads an agent."""
    launch(kernel, agents.num_envs * each, agents.heading.device, agents.arrays, world, *arguments)


LAUNCHES = {
    "begin": lambda agents, world, *rest: per_agent(begin_agents, 1, agents, world, *rest),
    "step": lambda agents, world, *rest: per_agent(step_agents, 1, agents, world, *rest),
    "see": lambda agents, world, *rest: per_agent(see_columns, world.pixels, agents, world, *rest),
    "expert": lambda agents, world, *rest: per_agent(ask_experts, 1, agents, world, *rest),
    "depths": lambda agents, world, *rest: per_agent(blur_depths, rest[2].shape[3] ** 2, agents, world, *rest),
    "colours": lambda agents, world, *rest: per_agent(blur_pictures, rest[2].shape[3] ** 2, agents, world, *rest),
    "pose": lambda agents, world, *rest: per_agent(blur_poses, 1, agents, world, *rest),
}
