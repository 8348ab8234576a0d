"""CUDA kernels of observations and opponents, around the functions of the CPU loops. Import it only with numba-cuda."""

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
"""Snakes in work at a time: each has 12 kB of working memory."""


@cuda.jit
def observe_rows(s, start, index, listed, due, masked, team, kind, sets, lanes, numbers, out):
    """Arguments of `observations.cpu_loops`; one thread a snake, each surveying the board for itself."""
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
    """Arguments of `opponents.cpu_loop`; one thread a board."""
    k = cuda.grid(1)
    if k < actions.shape[0]:
        choose(s, start + k, team, kind, seed, actions[k])


@cache
def working_memory(workers: int, device: torch.device) -> Scratch:
    """Working memory that stays where it is, so that launches can be captured in a CUDA graph."""
    return allocate_scratch(workers, cuda.device_array)


def observe(state: SnakesState, *arguments: Any) -> None:
    """Launches `observe_rows`; the last of `arguments` is `out`."""
    *where, out = arguments
    workers = min(TEAM * out.shape[0], MAX_WORKERS)
    with torch.cuda.device(state.grid.device):
        memory = working_memory(workers, state.grid.device)
    launch(observe_rows, workers, state.grid.device, state.arrays, *where, *memory, out)


def choose_all(state: SnakesState, *arguments: Any) -> None:
    """Launches `choose_rows`; the last of `arguments` is `actions`."""
    launch(choose_rows, arguments[-1].shape[0], state.grid.device, state.arrays, *arguments)
