"""Steps of all missions, on CPU threads or on CUDA, around the same scalar functions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import njit, prange
from torch import Tensor

from powerband.envs import hashing
from powerband.envs.arrays import device_array
from powerband.envs.compiled import stamp
from powerband.envs.hashing import inlined

from . import features, mapping, planning, rules, score, world
from .features import write_team, write_uav
from .mapping import begin_step, begin_sums, high_y, low_y, measure_row, row_fuser, sources_of
from .planning import plan
from .rules import draw_split, exchange, move_team, pick, start
from .score import count_row
from .state import Missions
from .world import WorldArrays


@inlined
def add(array, index, value):
    """One thread has a mission to itself."""
    array[index] += value


fuse_row = row_fuser(inlined, add)


@inlined
def take_in(s, w, n, seed):
    """All UAVs of mission `n` measure where they are, exchange, and fuse."""
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
    """Adds what `count_row` finds in map `k` to `counts` (N, 4)."""
    for y in range(w.cells):
        hits, false, missed, entropy = count_row(s, w, n, k, y)
        counts[n, 0] += hits
        counts[n, 1] += false
        counts[n, 2] += missed
        counts[n, 3] += entropy


@cache
def cpu_loops(parallel: bool) -> dict[str, Any]:
    """Loops over missions by name, on numba's threads where `parallel`, else on the thread that calls.

    Only the second may run on two Python threads at a time. Whatever a loop writes, functions write that it calls:
    numba takes `s.tick[n] += 1` in the loop itself for a sum over the missions, each thread adds to a copy of its own,
    and nothing arrives.
    """
    made_of = 2 * stamp(hashing, world, rules, mapping, features, planning, score) + parallel  # the two kinds apart too

    @njit(nogil=True, cache=True, parallel=parallel)
    def begin(s, w, seed, drawn):
        for n in prange(s.position.shape[0] + 0 * made_of):
            start(s, w, n, seed)
            if drawn:
                draw_split(s, w, n, seed)
            for k in range(w.agents + 1):
                begin_sums(s, w, n, k)
            take_in(s, w, n, seed)

    @njit(nogil=True, cache=True, parallel=parallel)
    def step(s, w, seed, action):
        for n in prange(s.position.shape[0] + 0 * made_of):
            move_team(s, w, n, action)
            take_in(s, w, n, seed)

    @njit(nogil=True, cache=True, parallel=parallel)
    def write(s, w, made, uav, team):
        for n in prange(s.position.shape[0] + 0 * made_of):
            for i in range(w.agents):
                write_uav(s, w, n, i, made, uav[n, i])
            write_team(s, w, n, team[n])

    @njit(nogil=True, cache=True, parallel=parallel)
    def choose(s, w, probability, noise, explore, chosen, mask):
        for n in prange(s.position.shape[0] + 0 * made_of):
            for i in range(w.agents):
                pick(s, w, n, i, probability, noise, explore, chosen, mask)

    @njit(nogil=True, cache=True, parallel=parallel)
    def count(s, w, k, counts):
        for n in prange(s.position.shape[0] + 0 * made_of):
            count_map(s, w, n, k, counts)

    @njit(nogil=True, cache=True, parallel=parallel)
    def greedy(s, w, gains, shared, chosen, mask, value):
        for n in prange(s.position.shape[0] + 0 * made_of):
            for i in range(w.agents):
                plan(s, w, n, i, gains, shared, chosen, mask, value)

    return {"begin": begin, "step": step, "write": write, "choose": choose, "count": count, "greedy": greedy}


def run(name: str, missions: Missions, world: WorldArrays, threads: int, *arguments: Any) -> None:
    """Runs one of the loops on all missions, on CPU threads or on torch's current stream.

    Args:
        name: begin, step, write, choose, count or greedy.
        missions: Read and written.
        world: Tables on the device of the missions.
        threads: CPU threads.
        arguments: As the loop takes them; tensors are handed over as arrays.
    """
    given = [device_array(value) if isinstance(value, Tensor) else value for value in arguments]
    if missions.position.device.type == "cpu":
        if threads > 1:
            numba.set_num_threads(threads)
        cpu_loops(threads > 1)[name](missions.arrays, world, *given)
    else:
        from . import cuda

        cuda.LAUNCHES[name](missions, world, *given)
