"""CUDA kernels that write observations and choose the moves of opponents. Importing this module needs numba-cuda."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from numba import cuda

from powerband.envs.numba.launch_cuda import launch
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.rules.flood import Scratch, allocate_scratch, flood_from_heads
from powerband.recipes.snakes.env.rules.game import TEAM
from powerband.recipes.snakes.env.rules.observation_rows import FEATURES, write_row
from powerband.recipes.snakes.env.rules.opponent_moves import choose

MAX_WORKERS = 1 << 15
"""Largest number of threads that write observations, one snake each; a thread needs 12 kB of working memory."""


@cuda.jit
def observe_rows(s, start, index, listed, due, masked, team, kind, sets, lanes, numbers, out):
    """Writes the observations of one team on n boards to `out` (n, 3, D), with one thread per snake.

    The boards are those in `index` if `listed`, otherwise start, start + 1, ... If `masked`, out[k] stays unchanged
    where due[k] is False. `s`: arrays of the boards; `team`: 0 = A, 1 = B; `kind`: number of the observation, which has
    D numbers per snake. Each thread uses its own part of the working memory `sets`, `lanes` and `numbers`.
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
    """Writes the moves of a scripted team on n boards to `actions` (n, 3), with one thread per board.

    The n boards have the indices start, start + 1, ... `s`: arrays of the boards; `team`: 0 = A, 1 = B; `kind`: RANDOM,
    GREEDY or GREEDY_TORUS; `seed`: seed of random moves.
    """
    k = cuda.grid(1)
    if k < actions.shape[0]:
        choose(s, start + k, team, kind, seed, actions[k])


@cache
def working_memory(workers: int, device: torch.device) -> Scratch:
    """Allocates working memory for `workers` threads once, so that CUDA graphs can capture launches that use it."""
    return allocate_scratch(workers, cuda.device_array)


def observe(state: SnakesState, *arguments: Any) -> None:
    """Launches `observe_rows` with the arrays of `state` and its own working memory.

    `arguments` are the parameters of `observe_rows` from `start` to `kind`, then `out`.
    """
    *inputs, out = arguments
    workers = min(TEAM * out.shape[0], MAX_WORKERS)
    with torch.cuda.device(state.grid.device):
        memory = working_memory(workers, state.grid.device)
    launch(observe_rows, workers, state.grid.device, state.arrays, *inputs, *memory, out)


def choose_all(state: SnakesState, *arguments: Any) -> None:
    """Launches `choose_rows` with the arrays of `state`; `arguments` are its parameters from `start` to `actions`."""
    launch(choose_rows, arguments[-1].shape[0], state.grid.device, state.arrays, *arguments)
