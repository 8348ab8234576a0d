"""The CUDA kernels around the functions of the CPU loops. Import it only where numba-cuda is installed.

numba-cuda compiles a CPU function again, for the device, where a kernel calls it. A step is three kernels: one thread a
mission moves and exchanges, one a row of a footprint measures, one a row of a map fuses; block sums are added up with
atomics on whole numbers, so that the order in which threads come changes no bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from numba import cuda

from powerband.envs.cuda_launch import launch

from .features import write_team, write_uav
from .mapping import begin_step, begin_sums, measure_row, row_fuser
from .planning import plan
from .rules import draw_split, exchange, move_team, pick, start
from .score import count_row
from .state import Missions
from .world import WorldArrays


@cuda.jit(device=True, inline=True)
def add(array, index, value):
    """Many threads add to one mission's sums."""
    cuda.atomic.add(array, index, value)


fuse_row = row_fuser(cuda.jit(device=True), add)


@cuda.jit
def begin_missions(s, w, seed, drawn):
    """One thread a mission."""
    n = cuda.grid(1)
    if n < s.position.shape[0]:
        start(s, w, n, seed)
        if drawn:
            draw_split(s, w, n, seed)
        for k in range(w.agents + 1):
            begin_sums(s, w, n, k)
        exchange(s, w, n, seed)
        begin_step(s, w, n)


@cuda.jit
def move_missions(s, w, seed, action):
    """One thread a mission."""
    n = cuda.grid(1)
    if n < s.position.shape[0]:
        move_team(s, w, n, action)
        exchange(s, w, n, seed)
        begin_step(s, w, n)


@cuda.jit
def measure_rows(s, w, seed):
    """One thread a row of a footprint."""
    thread, span = cuda.grid(1), s.measured.shape[2]
    n, rest = thread // (w.agents * span), thread % (w.agents * span)
    if n < s.position.shape[0]:
        measure_row(s, w, n, rest // span, rest % span, seed)


@cuda.jit
def fuse_rows(s, w):
    """One thread a row of a map."""
    thread = cuda.grid(1)
    n, rest = thread // ((w.agents + 1) * w.cells), thread % ((w.agents + 1) * w.cells)
    if n < s.position.shape[0]:
        fuse_row(s, w, n, rest // w.cells, rest % w.cells)


@cuda.jit
def write_maps(s, w, made, uav, team):
    """One thread a UAV, and one a team."""
    thread = cuda.grid(1)
    n, i = thread // (w.agents + 1), thread % (w.agents + 1)
    if n < s.position.shape[0]:
        if i < w.agents:
            write_uav(s, w, n, i, made, uav[n, i])
        else:
            write_team(s, w, n, team[n])


@cuda.jit
def choose_moves(s, w, probability, noise, explore, chosen, mask):
    """One thread a mission."""
    n = cuda.grid(1)
    if n < s.position.shape[0]:
        for i in range(w.agents):
            pick(s, w, n, i, probability, noise, explore, chosen, mask)


@cuda.jit
def count_rows(s, w, k, counts):
    """One thread a row of a map."""
    thread = cuda.grid(1)
    n = thread // w.cells
    if n < s.position.shape[0]:
        hits, false, missed, entropy = count_row(s, w, n, k, thread % w.cells)
        cuda.atomic.add(counts, (n, 0), hits)
        cuda.atomic.add(counts, (n, 1), false)
        cuda.atomic.add(counts, (n, 2), missed)
        cuda.atomic.add(counts, (n, 3), entropy)


@cuda.jit
def plan_moves(s, w, gains, shared, chosen, mask, value):
    """One thread a mission."""
    n = cuda.grid(1)
    if n < s.position.shape[0]:
        for i in range(w.agents):
            plan(s, w, n, i, gains, shared, chosen, mask, value)


def per_mission(kernel: Any, each: int, missions: Missions, world: WorldArrays, *arguments: Any) -> None:
    """Runs `kernel` with `each` threads a mission."""
    launch(kernel, missions.num_envs * each, missions.position.device, missions.arrays, world, *arguments)


def take_in(missions: Missions, world: WorldArrays, seed: int) -> None:
    """What follows a move or a start."""
    per_mission(measure_rows, world.agents * missions.measured.shape[2], missions, world, seed)
    per_mission(fuse_rows, (world.agents + 1) * world.cells, missions, world)


def begin(missions: Missions, world: WorldArrays, seed: int, drawn: bool) -> None:
    """Begins all missions."""
    per_mission(begin_missions, 1, missions, world, seed, drawn)
    take_in(missions, world, seed)


def step(missions: Missions, world: WorldArrays, seed: int, action: Any) -> None:
    """Moves all UAVs."""
    per_mission(move_missions, 1, missions, world, seed, action)
    take_in(missions, world, seed)


def write(missions: Missions, world: WorldArrays, *arguments: Any) -> None:
    """Writes the observations."""
    per_mission(write_maps, world.agents + 1, missions, world, *arguments)


def count(missions: Missions, world: WorldArrays, *arguments: Any) -> None:
    """Counts hits and misses."""
    per_mission(count_rows, world.cells, missions, world, *arguments)


LAUNCHES = {
    "begin": begin,
    "step": step,
    "write": write,
    "choose": partial(per_mission, choose_moves, 1),
    "count": count,
    "greedy": partial(per_mission, plan_moves, 1),
}
