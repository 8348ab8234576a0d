"""CUDA kernels that write observations and choose the moves of opponents. Importing this module needs numba-cuda."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from powerband.envs.numba.launch_cuda import launch
from powerband.envs.numba.numba_cuda import cuda
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.rules.flood import Scratch, allocate_scratch, flood_from_heads
from powerband.recipes.snakes.env.rules.game import TEAM
from powerband.recipes.snakes.env.rules.observation_rows import FEATURES, write_row
from powerband.recipes.snakes.env.rules.opponent_moves import choose

MAX_WORKERS = 1 << 15
"""Largest number of threads that write observations, one snake each; a thread needs 12 kB of working memory."""


@cuda.jit
def observe_rows(s, start, index, listed, due, masked, team, kind, sets, lanes, numbers, out):
    """Writes the observations of one team on n boards, with one thread per snake.

    Args:
        s: Arrays of all boards, a `BoardArrays`.
        start, index, listed: The n boards are those in `index` (n,) if `listed`, otherwise start, start + 1, ...
        due, masked: If `masked`, out[k] stays unchanged for each k for which due[k] is False.
        team: 0 = A, 1 = B.
        kind: Kind of observation, one of the constants BASELINE, FORK, PLANES and FEATURES.
        sets, lanes, numbers: Scratch arrays, in which FEATURES computes which cells snakes can reach, see
            `flood.Scratch`; each thread uses its own part.
        out: (n, 3, D) float32, written, with D numbers per snake.
    """
    worker = cuda.grid(1)
    if worker >= sets.shape[0]:
        return
    for row in range(worker, TEAM * out.shape[0], sets.shape[0]):
        k, slot = row // TEAM, row % TEAM
        if not masked or due[k]:
            b = index[k] if listed else start + k
            if kind == FEATURES:
                flood_from_heads(s, b, sets[worker], lanes[worker], numbers[worker])
            write_row(s, b, TEAM * team + slot, kind, sets[worker], lanes[worker], numbers[worker], out[k, slot])


@cuda.jit
def choose_rows(s, start, team, kind, seed, actions):
    """Chooses the moves of a team by a fixed rule on n boards, with one thread per board.

    The moves are written to `actions` (n, 3) int64. The n boards have the indices start, start + 1, ... `s`: arrays of
    all boards; `team`: 0 = A, 1 = B; `kind`: the rule RANDOM, GREEDY or GREEDY_TORUS; `seed`: seed of random moves as
    uint64.
    """
    k = cuda.grid(1)
    if k < actions.shape[0]:
        choose(s, start + k, team, kind, seed, actions[k])


@cache
def working_memory(workers: int, device: torch.device) -> Scratch:
    """Returns scratch arrays on `device`, in which `workers` threads compute which cells snakes can reach.

    Later calls return the same memory, so that CUDA graphs can capture launches that use it.
    """
    return allocate_scratch(workers, cuda.device_array)


def observe(state: SnakesState, *arguments: Any) -> None:
    """Writes the observations of one team on the GPU: launches `observe_rows` for the boards of `state`.

    `arguments` are the parameters of `observe_rows` from `start` to `kind`, then `out`. The scratch arrays are added
    here.
    """
    *inputs, out = arguments
    workers = min(TEAM * out.shape[0], MAX_WORKERS)
    with torch.cuda.device(state.grid.device):
        memory = working_memory(workers, state.grid.device)
    launch(observe_rows, workers, state.grid.device, state.arrays, *inputs, *memory, out)


def choose_all(state: SnakesState, *arguments: Any) -> None:
    """Chooses the moves of a team by a fixed rule on the GPU: launches `choose_rows` for the boards of `state`.

    `arguments` are the parameters of `choose_rows` from `start` to `actions`.
    """
    launch(choose_rows, arguments[-1].shape[0], state.grid.device, state.arrays, *arguments)
