"""Kernels: functions that advance all missions, on CPU threads or on CUDA, with the same compiled rules.

Parameter names: `s` is a `MissionArrays`, the state of all missions; `w` is a `WorldArrays`, the constants of the
world; `n` is the index of a mission, `i` and `j` are UAVs, `k` is a map.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit, prange

from powerband.core.machine.cache_stamp import source_checksum
from powerband.envs.numba import hashing
from powerband.envs.numba.dispatch import run_kernel
from powerband.envs.numba.hashing import inlined
from powerband.recipes.uav import settings
from powerband.recipes.uav.env import world
from powerband.recipes.uav.env.rules import features, footprints, information_gain, map_metrics, mapping, moves, starts
from powerband.recipes.uav.env.rules.features import write_team, write_uav
from powerband.recipes.uav.env.rules.footprints import high_y, low_y
from powerband.recipes.uav.env.rules.information_gain import choose_greedy_move
from powerband.recipes.uav.env.rules.map_metrics import count_row
from powerband.recipes.uav.env.rules.mapping import begin_step, begin_sums, measure_row, row_fuser, sources_of
from powerband.recipes.uav.env.rules.moves import exchange, move_team, sample_move
from powerband.recipes.uav.env.rules.starts import draw_split, start
from powerband.recipes.uav.env.state import Missions
from powerband.recipes.uav.env.world import WorldArrays


@inlined
def add(array, index, value):
    """Adds `value` to array[index] without atomic operations, because one thread processes a whole mission."""
    array[index] += value


fuse_row = row_fuser(inlined, add)


@inlined
def measure_and_fuse(s, w, n, seed):
    """Lets all UAVs of mission `n` measure at their positions, exchange the measurements, and update their beliefs.

    `s`: state of all missions; `w`: constants of the world. `seed`: seed of the random draws.
    """
    begin_step(s, w, n)
    exchange(s, w, n, seed)
    for i in range(w.agents):
        for row in range(high_y(s, n, i) - low_y(s, n, i)):
            measure_row(s, w, n, i, row, seed)
    for k in range(w.agents + 1):
        sources, first, last = sources_of(s, w, n, k), np.int64(w.cells), np.int64(0)
        for j in range(w.agents):
            if sources >> j & 1:
                first, last = min(first, low_y(s, n, j)), max(last, high_y(s, n, j))
        for y in range(first, last):
            fuse_row(s, w, n, k, y)


@inlined
def count_map(s, w, n, k, counts):
    """Compares map `k` of mission `n` with the hidden map, and adds hits, false alarms, misses and entropy to `counts`.

    `s`: state of all missions; `w`: constants of the world. `counts`: (N missions, 4) int64. Map k is the belief of UAV
    k; the last map contains the measurements of all UAVs. `count_row` explains the counts.
    """
    for y in range(w.cells):
        hits, false, missed, entropy = count_row(s, w, n, k, y)
        counts[n, 0] += hits
        counts[n, 1] += false
        counts[n, 2] += missed
        counts[n, 3] += entropy


# The checksum of everything that the loops are compiled from.
NAMES = ("begin", "step", "write", "choose", "count", "greedy")
CHECKSUM = source_checksum(
    hashing, settings, world, moves, starts, footprints, mapping, features, information_gain, map_metrics
)


def _row_loops(checksum: int) -> tuple[Any, ...]:
    """Compiles a loop over the missions first, first + 1, ... last - 1 for each of `NAMES`, for the calling thread.

    As a closure, the checksum is part of the key in numba's disk cache.
    """

    @njit(nogil=True, cache=True)
    def begin(s, w, first, last, seed, drawn):
        for n in range(first, last + 0 * checksum):
            start(s, w, n, seed)
            if drawn:
                draw_split(s, w, n, seed)
            for k in range(w.agents + 1):
                begin_sums(s, w, n, k)
            measure_and_fuse(s, w, n, seed)

    @njit(nogil=True, cache=True)
    def step(s, w, first, last, seed, action):
        for n in range(first, last + 0 * checksum):
            move_team(s, w, n, action)
            measure_and_fuse(s, w, n, seed)

    @njit(nogil=True, cache=True)
    def write(s, w, first, last, moves_made, uav, team):
        for n in range(first, last + 0 * checksum):
            for i in range(w.agents):
                write_uav(s, w, n, i, moves_made, uav[n, i])
            write_team(s, w, n, team[n])

    @njit(nogil=True, cache=True)
    def choose(s, w, first, last, probability, noise, explore, chosen, mask):
        for n in range(first, last + 0 * checksum):
            for i in range(w.agents):
                sample_move(s, w, n, i, probability, noise, explore, chosen, mask)

    @njit(nogil=True, cache=True)
    def count(s, w, first, last, k, counts):
        for n in range(first, last + 0 * checksum):
            count_map(s, w, n, k, counts)

    @njit(nogil=True, cache=True)
    def greedy(s, w, first, last, gains, shared, chosen, mask, value):
        for n in range(first, last + 0 * checksum):
            for i in range(w.agents):
                choose_greedy_move(s, w, n, i, gains, shared, chosen, mask, value)

    return begin, step, write, choose, count, greedy


# Global, because a compiled function in the closure of another one would never match the cache.
begin_rows, step_rows, write_rows, choose_rows, count_rows, greedy_rows = SERIAL = _row_loops(CHECKSUM)


@cache
def cpu_loops(parallel: bool) -> dict[str, Any]:
    """Returns the kernels for the CPU by name; each kernel is a loop over missions, which `run_kernel` calls.

    Args:
        parallel: Run on numba's threads, instead of the calling thread. Only loops on the calling thread may run in two
            Python threads at the same time.

    Returns:
        Six loops: ``begin`` starts the missions; ``step`` moves the UAVs, measures and updates the beliefs; ``write``
        writes the observations; ``choose`` samples moves; ``count`` compares a map with the hidden map; ``greedy``
        chooses the moves of `GreedyPlanner`. The CUDA kernels in the module `cuda` have the same further parameters.
    """
    if not parallel:
        return dict(zip(NAMES, SERIAL, strict=True))
    checksum = CHECKSUM

    @njit(nogil=True, cache=True, parallel=True)
    def begin(s, w, parts, seed, drawn):
        rows = s.position.shape[0] + 0 * checksum
        for p in prange(parts):
            begin_rows(s, w, p * rows // parts, (p + 1) * rows // parts, seed, drawn)

    @njit(nogil=True, cache=True, parallel=True)
    def step(s, w, parts, seed, action):
        rows = s.position.shape[0] + 0 * checksum
        for p in prange(parts):
            step_rows(s, w, p * rows // parts, (p + 1) * rows // parts, seed, action)

    @njit(nogil=True, cache=True, parallel=True)
    def write(s, w, parts, moves_made, uav, team):
        rows = s.position.shape[0] + 0 * checksum
        for p in prange(parts):
            write_rows(s, w, p * rows // parts, (p + 1) * rows // parts, moves_made, uav, team)

    @njit(nogil=True, cache=True, parallel=True)
    def choose(s, w, parts, probability, noise, explore, chosen, mask):
        rows = s.position.shape[0] + 0 * checksum
        for p in prange(parts):
            choose_rows(s, w, p * rows // parts, (p + 1) * rows // parts, probability, noise, explore, chosen, mask)

    @njit(nogil=True, cache=True, parallel=True)
    def count(s, w, parts, k, counts):
        rows = s.position.shape[0] + 0 * checksum
        for p in prange(parts):
            count_rows(s, w, p * rows // parts, (p + 1) * rows // parts, k, counts)

    @njit(nogil=True, cache=True, parallel=True)
    def greedy(s, w, parts, gains, shared, chosen, mask, value):
        rows = s.position.shape[0] + 0 * checksum
        for p in prange(parts):
            greedy_rows(s, w, p * rows // parts, (p + 1) * rows // parts, gains, shared, chosen, mask, value)

    return dict(zip(NAMES, (begin, step, write, choose, count, greedy), strict=True))


def run(name: str, missions: Missions, tables: WorldArrays, threads: int, *arguments: Any) -> None:
    """Runs one kernel on all missions, on the device of `missions`.

    Args:
        name: Kernel: begin, step, write, choose, count or greedy.
        missions: State of the missions, updated in place.
        tables: Constants of the world.
        threads: Number of CPU threads.
        arguments: Arguments of the kernel after the state and the constants; the module `cuda` explains them.
    """
    run_kernel(cpu_loops, "powerband.recipes.uav.env.cuda", name, missions, tables, threads, *arguments)
