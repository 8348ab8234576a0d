"""CUDA kernels of sketchnav, which call the scalar functions of the CPU loops. Importing this module needs numba-cuda.

In all kernels, `s` are the arrays of N agents (`AgentArrays`), `w` the arrays of the world (`WorldArrays`), `o` the
arrays of the sensors (`SensorArrays`), and `seed` the seed of the environment. With `ended_only`, agents whose episode
has not ended are left out. Images are `rgb` (N, 3, S, S) and `depth` (N, 1, S, S). A depth of z metres is written as
`scale` z + `offset`, limited to 0..`top`.
"""

from __future__ import annotations

from typing import Any

from powerband.envs.numba.launch_cuda import launch_per_row
from powerband.envs.numba.numba_cuda import cuda
from powerband.recipes.sketchnav.env.motion import begin_row, shortest_path_action, step_row
from powerband.recipes.sketchnav.env.raycaster import render_column
from powerband.recipes.sketchnav.env.sensors import add_colour_noise, add_depth_noise, add_pose_noise, frame_key
from powerband.recipes.sketchnav.env.state import Agents
from powerband.recipes.sketchnav.env.world import WorldArrays


@cuda.jit
def begin_agents(s, w, seed, stride, ended_only):
    """Begins the next episode of each agent, with one thread per agent.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        seed: Seed of the random choice of episodes; not used if agents play the episodes in order.
        stride: Number of episodes by which an agent advances, if agents play the episodes in order.
        ended_only: Only agents whose episode ended begin the next episode.
    """
    n = cuda.grid(1)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        begin_row(s, w, n, seed, stride)


@cuda.jit
def step_agents(s, w, action):
    """Executes one action of each agent, with one thread per agent.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        action: Actions (N,) int64 of N agents.
    """
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        step_row(s, w, n, action[n])


@cuda.jit
def render_columns(s, w, rgb, depth, scale, offset, top, ended_only):
    """Renders the camera images of all agents, with one thread per image column.

    Neighbouring threads render neighbouring columns, so that the memory accesses of a warp are contiguous.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        rgb: Colours (N, 3, S, S) uint8 of N agents with images of S x S pixels; written.
        depth: Depth (N, 1, S, S); written as `scale` z + `offset`, limited to 0..`top`, for a depth of z metres.
        scale, offset, top: Numbers that convert z to the written depth.
        ended_only: Render only for agents whose episode ended.
    """
    thread = cuda.grid(1)
    n = thread // w.pixels
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        render_column(s, w, n, thread % w.pixels, rgb, depth, scale, offset, top)


@cuda.jit
def expert_kernel(s, w):
    """Writes the action of the expert, which follows the shortest path, to ``s.expert``, with one thread per agent.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
    """
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        s.expert[n] = shortest_path_action(s, w, n)


@cuda.jit
def depth_noise_kernel(s, w, o, seed, metres, depth, scale, offset, ended_only):
    """Computes the noisy depth of all agents, with one thread per pixel.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        o: Tables and standard deviations of the noise (`SensorArrays`).
        seed: Seed of the environment.
        metres: Exact depth (N, 1, S, S) in metres, in images of S x S pixels of N agents.
        depth: Depth (N, 1, S, S) uint8; written as `scale` z + `offset` for a noisy depth of z metres.
        scale, offset: Numbers that convert z to the written depth.
        ended_only: Write only for agents whose episode ended.
    """
    side, thread = depth.shape[3], cuda.grid(1)
    n, pixel = thread // (side * side), thread % (side * side)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        key = frame_key(s, w, n, seed)
        add_depth_noise(o, key, n, pixel // side, pixel % side, metres, depth, scale, offset)


@cuda.jit
def colour_noise_kernel(s, w, o, seed, rgb, ended_only):
    """Adds noise to the colours of all agents, with one thread per pixel.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        o: Tables and standard deviations of the noise (`SensorArrays`).
        seed: Seed of the environment.
        rgb: Colours (N, 3, S, S) uint8 of N agents with images of S x S pixels; changed in place.
        ended_only: Change only the images of agents whose episode ended.
    """
    side, thread = rgb.shape[3], cuda.grid(1)
    n, pixel = thread // (side * side), thread % (side * side)
    if n < s.heading.shape[0] and (s.ended[n] or not ended_only):
        add_colour_noise(o, frame_key(s, w, n, seed), n, pixel // side, pixel % side, rgb)


@cuda.jit
def pose_noise_kernel(s, w, o, seed, gps, compass):
    """Adds noise to the positions and headings that the agents observe, with one thread per agent.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        o: Tables and standard deviations of the noise (`SensorArrays`).
        seed: Seed of the environment.
        gps: Positions (N, 2) float32 of N agents in metres; changed in place.
        compass: Headings (N, 1) float32 in radians; changed in place.
    """
    n = cuda.grid(1)
    if n < s.heading.shape[0]:
        add_pose_noise(s, w, o, n, seed, gps, compass)


def launch_render(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches the CUDA kernel `render_columns` with one thread per image column.

    Args:
        agents: State of all agents.
        world: Plans, episodes and lookup tables.
        arguments: Arguments of the kernel after `w`.
    """
    launch_per_row(render_columns, world.pixels, agents, world, *arguments)


def launch_depth_noise(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches the CUDA kernel `depth_noise_kernel` with one thread per pixel of the depth images.

    Args:
        agents: State of all agents.
        world: Plans, episodes and lookup tables.
        arguments: Arguments of the kernel after `w`; ``arguments[3]`` are the depth images.
    """
    launch_per_row(depth_noise_kernel, arguments[3].shape[3] ** 2, agents, world, *arguments)


def launch_colour_noise(agents: Agents, world: WorldArrays, *arguments: Any) -> None:
    """Launches the CUDA kernel `colour_noise_kernel` with one thread per pixel of the colour images.

    Args:
        agents: State of all agents.
        world: Plans, episodes and lookup tables.
        arguments: Arguments of the kernel after `w`; ``arguments[2]`` are the colour images.
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
