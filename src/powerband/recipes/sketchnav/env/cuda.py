"""CUDA kernels of sketchnav, which call the scalar functions of the CPU loops. Importing this module needs numba-cuda.

In all kernels, `s` are the arrays of N agents (`AgentArrays`), `w` the arrays of the world (`WorldArrays`), `o` the
arrays of the sensors (`SensorArrays`), and `seed` the seed of the environment. With `ended_only`, agents whose episode
has not ended are left out. Images are `rgb` (N, 3, S, S) and `depth` (N, 1, S, S). A depth of z metres is written as
`scale` z + `offset`, limited to 0..`top`.
"""

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
    """Begins the next episode of each agent, or with `ended_only` of those whose episode ended; one thread per agent.

    `s` are the arrays of all agents, `w` those of the world. Agents that play the episodes in order advance by `stride`
    episodes; other agents draw an episode with `seed`.
    """
    n = cuda.grid(1)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        begin_row(s, w, n, seed, stride)


@cuda.jit
def step_agents(s, w, action):
    """Executes `action` (N,), one action for each of N agents, with one thread per agent.

    `s` are the arrays of all agents, `w` those of the world.
    """
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        step_row(s, w, n, action[n])


@cuda.jit
def render_columns(s, w, rgb, depth, scale, offset, top, ended_only):
    """Renders `rgb` (N, 3, S, S) and `depth` (N, 1, S, S) of N agents with S x S pixels, with one thread per column.

    `s` are the arrays of all agents, `w` those of the world. With `ended_only`, only agents whose episode ended are
    rendered. A depth of z metres is written as `scale` z + `offset`, limited to 0..`top`. Neighbouring threads
    render neighbouring columns, so that the memory accesses of a warp are contiguous.
    """
    thread = cuda.grid(1)
    n = thread // w.pixels
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        render_column(s, w, n, thread % w.pixels, rgb, depth, scale, offset, top)


@cuda.jit
def expert_kernel(s, w):
    """Writes the action of the shortest-path follower of each agent to ``s.expert``, with one thread per agent.

    `s` are the arrays of all agents, `w` those of the world.
    """
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        s.expert[n] = shortest_path_action(s, w, n)


@cuda.jit
def depth_noise_kernel(s, w, o, seed, metres, depth, scale, offset, ended_only):
    """Writes noisy `depth` from `metres`, the exact depth (N, 1, S, S) in metres, with one thread per pixel.

    There are N agents with images of S x S pixels; with `ended_only`, only agents whose episode ended are changed.
    `s` are the arrays of all agents, `w` those of the world. `o` are the arrays of the sensors. A depth of z metres is
    written as `scale` z + `offset`.
    """
    side, thread = depth.shape[3], cuda.grid(1)
    n, pixel = thread // (side * side), thread % (side * side)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        key = frame_key(s, w, n, seed)
        add_depth_noise(o, key, n, pixel // side, pixel % side, metres, depth, scale, offset)


@cuda.jit
def colour_noise_kernel(s, w, o, seed, rgb, ended_only):
    """Adds noise to the colours `rgb` (N, 3, S, S) of N agents with S x S pixels, with one thread per pixel.

    `s` are the arrays of all agents, `w` those of the world. `o` are the arrays of the sensors. With `ended_only`, only
    agents whose episode ended are changed.
    """
    side, thread = rgb.shape[3], cuda.grid(1)
    n, pixel = thread // (side * side), thread % (side * side)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        add_colour_noise(o, frame_key(s, w, n, seed), n, pixel // side, pixel % side, rgb)


@cuda.jit
def pose_noise_kernel(s, w, o, seed, gps, compass):
    """Adds noise to `gps` (N, 2) and `compass` (N, 1) of N agents, with one thread per agent.

    `s` are the arrays of all agents, `w` those of the world. `o` are the arrays of the sensors.
    """
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        add_pose_noise(s, w, o, n, seed, gps, compass)


def launch_render(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches `render_columns` with one thread per image column.

    `arguments` are those of the kernel after the world.
    """
    launch_per_row(render_columns, world.pixels, agents, world, *arguments)


def launch_depth_noise(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches `depth_noise_kernel` with one thread per pixel of each agent's depth image, ``arguments[3]``.

    `arguments` are those of the kernel after the world.
    """
    launch_per_row(depth_noise_kernel, arguments[3].shape[3] ** 2, agents, world, *arguments)


def launch_colour_noise(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches `colour_noise_kernel` with one thread per pixel of each agent's colour image, ``arguments[2]``.

    `arguments` are those of the kernel after the world.
    """
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
"""Name of a CPU loop -> function that launches the CUDA kernel of the same purpose."""
