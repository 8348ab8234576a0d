"""CUDA kernels: advances all missions on a GPU, with the rules of the CPU loops. Importing it needs numba-cuda.

Parameter names: `s` is a `MissionArrays`, the state of all missions; `w` is a `WorldArrays`, the constants of the
world; `n` is the index of a mission, `i` a UAV, `k` a map.

numba-cuda compiles a CPU function for the device when a kernel calls it. A step takes three kernels. In the first, one
thread per mission moves the UAVs and exchanges messages. In the second, one thread per row of a footprint measures. In
the third, one thread per row of a map fuses, which means that it adds the measurements to the beliefs. Atomic additions
of integers compute the block sums, so their order does not change a bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from powerband.envs.numba.launch_cuda import launch_per_row
from powerband.envs.numba.numba_cuda import cuda
from powerband.recipes.uav.env.rules.features import write_team, write_uav
from powerband.recipes.uav.env.rules.information_gain import choose_greedy_move
from powerband.recipes.uav.env.rules.map_metrics import count_row
from powerband.recipes.uav.env.rules.mapping import begin_step, begin_sums, measure_row, row_fuser
from powerband.recipes.uav.env.rules.moves import exchange, move_team, sample_move
from powerband.recipes.uav.env.rules.starts import draw_split, start
from powerband.recipes.uav.env.state import Missions
from powerband.recipes.uav.env.world import WorldArrays


@cuda.jit(device=True, inline=True)
def add(array, index, value):
    """Adds `value` to array[index] atomically, because many threads add to the sums of one mission."""
    cuda.atomic.add(array, index, value)


fuse_row = row_fuser(cuda.jit(device=True), add)


@cuda.jit
def begin_missions(s, w, seed, drawn):
    """Starts all missions, with one thread per mission.

    `s`: state of all missions; `w`: constants of the world; `seed`: seed of the random draws; `drawn`: True draws a
    half plane as the hidden map, False keeps the map in ``s.truth``.
    """
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
    """Moves all UAVs by `action` (N missions, A UAVs) and exchanges their messages, with one thread per mission.

    `s`: state of all missions; `w`: constants of the world. `seed`: seed of the random draws.
    """
    n = cuda.grid(1)
    if n < s.position.shape[0]:
        move_team(s, w, n, action)
        exchange(s, w, n, seed)
        begin_step(s, w, n)


@cuda.jit
def measure_rows(s, w, seed):
    """Measures the cells that the cameras see, with one thread per row of a camera footprint.

    `s`: state of all missions; `w`: constants of the world. `seed`: seed of the sensor noise.
    """
    thread, span = cuda.grid(1), s.measured.shape[2]
    n, rest = thread // (w.agents * span), thread % (w.agents * span)
    if n < s.position.shape[0]:
        measure_row(s, w, n, rest // span, rest % span, seed)


@cuda.jit
def fuse_rows(s, w):
    """Adds the latest measurements to the beliefs (log odds) of all maps, with one thread per row of a map.

    `s`: state of all missions; `w`: constants of the world.
    """
    thread = cuda.grid(1)
    n, rest = thread // ((w.agents + 1) * w.cells), thread % ((w.agents + 1) * w.cells)
    if n < s.position.shape[0]:
        fuse_row(s, w, n, rest // w.cells, rest % w.cells)


@cuda.jit
def write_maps(s, w, moves_made, uav, team):
    """Writes the observations, with one thread per UAV and one per team.

    `s`: state of all missions; `w`: constants of the world. `moves_made`: moves so far in the missions; `uav`: output
    (N missions, A UAVs, 7, 11, 11), the maps of each UAV; `team`: output (N, 4, 11, 11), the maps of each team. The
    module `features` lists the maps.
    """
    thread = cuda.grid(1)
    n, i = thread // (w.agents + 1), thread % (w.agents + 1)
    if n < s.position.shape[0]:
        if i < w.agents:
            write_uav(s, w, n, i, moves_made, uav[n, i])
        else:
            write_team(s, w, n, team[n])


@cuda.jit
def choose_moves(s, w, probability, noise, explore, chosen, mask):
    """Samples the moves of all UAVs, with one thread per mission.

    `s`: state of N missions of A UAVs; `w`: constants of the world. Inputs: `probability` (N, A, 6) of each move, and
    `noise` (N, A), uniform random numbers. `explore`: True samples, False takes the most likely allowed move. Outputs:
    the moves `chosen` (N, A), and `mask` (N, A, 6), True for allowed moves.
    """
    n = cuda.grid(1)
    if n < s.position.shape[0]:
        for i in range(w.agents):
            sample_move(s, w, n, i, probability, noise, explore, chosen, mask)


@cuda.jit
def count_rows(s, w, k, counts):
    """Compares map `k` of each mission with the hidden map, with one thread per row of the map.

    Map k is the belief of UAV k; the last map contains the measurements of all UAVs. `s`: state of all N missions; `w`:
    constants of the world. `counts`: (N, 4) int64; the kernel adds the numbers of cells that are hits, false alarms
    and misses, and the entropy in bits over the region of interest, times FIXED_POINT_SCALE.
    """
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
    """Chooses the moves with the largest expected information gain, with one thread per mission.

    `s`: state of N missions of A UAVs; `w`: constants of the world; `gains`: table of `expected_gains`; `shared`: True
    discounts cells that UAVs with a lower index will measure. Outputs: the moves `chosen` (N, A); `mask` (N, A, 6),
    True for allowed moves; `value` (N, A, 6), the expected gain of each move.
    """
    n = cuda.grid(1)
    if n < s.position.shape[0]:
        for i in range(w.agents):
            choose_greedy_move(s, w, n, i, gains, shared, chosen, mask, value)


def measure_and_fuse(missions: Missions, tables: WorldArrays, seed: int) -> None:
    """Lets all UAVs measure at their positions, and adds the measurements to the beliefs (log odds) of their maps.

    It is called at the start of the missions and after every move. `missions`: state of all missions, updated in place;
    `tables`: constants of the world; `seed`: seed of the noise.
    """
    launch_per_row(measure_rows, tables.agents * missions.measured.shape[2], missions, tables, seed)
    launch_per_row(fuse_rows, (tables.agents + 1) * tables.cells, missions, tables)


def begin(missions: Missions, tables: WorldArrays, seed: int, drawn: bool) -> None:
    """Starts all missions, including the first measurement of each UAV.

    `missions`: state of all missions, updated in place; `tables`: constants of the world; `seed`: seed of the random
    draws; `drawn`: True draws a half plane as the hidden map of each mission, False keeps the hidden maps.
    """
    launch_per_row(begin_missions, 1, missions, tables, seed, drawn)
    measure_and_fuse(missions, tables, seed)


def step(missions: Missions, tables: WorldArrays, seed: int, action: Any) -> None:
    """Moves the A UAVs of N missions by `action` (N, A) int64, measures, and adds the measurements to the beliefs.

    `missions`: state of all missions, updated in place; `tables`: constants of the world; `seed`: seed of the random
    draws.
    """
    launch_per_row(move_missions, 1, missions, tables, seed, action)
    measure_and_fuse(missions, tables, seed)


def write(missions: Missions, tables: WorldArrays, *arguments: Any) -> None:
    """Writes the observations of all missions with the kernel `write_maps`.

    `missions`: state of all missions; `tables`: constants of the world; `arguments`: arguments of the kernel after `s`
    and `w`.
    """
    launch_per_row(write_maps, tables.agents + 1, missions, tables, *arguments)


def count(missions: Missions, tables: WorldArrays, *arguments: Any) -> None:
    """Counts cells in which a belief map of each mission agrees and disagrees with the hidden map.

    Args:
        missions: State of all missions.
        tables: Constants of the world.
        arguments: ``k``, the index of the belief map, and ``counts``, which receives the counts; see `count_rows`.
    """
    launch_per_row(count_rows, tables.cells, missions, tables, *arguments)


LAUNCHES = {
    "begin": begin,
    "step": step,
    "write": write,
    "choose": partial(launch_per_row, choose_moves, 1),
    "count": count,
    "greedy": partial(launch_per_row, plan_moves, 1),
}
