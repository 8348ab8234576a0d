"""Compiled loops of the environments match numba's disk cache in the next process."""

from __future__ import annotations

from types import ModuleType

import pytest

from powerband.recipes.sketchnav.env import kernels as sketchnav
from powerband.recipes.snakes.env import kernels as snakes
from powerband.recipes.snakes.env import observations
from powerband.recipes.uav.env import kernels as uav


@pytest.mark.parametrize("module", [uav, sketchnav, snakes, observations], ids=lambda module: module.__name__)
def test_closures_contain_one_number_and_nothing_else(module: ModuleType) -> None:
    """numba's key of a cached function contains its closure, and a function in it has another key in each process."""
    if module in (uav, sketchnav):
        loops = [loop for parallel in (False, True) for loop in module.cpu_loops(parallel).values()]
    else:
        loops = list(module.cpu_loops())
    for loop in loops:
        assert [type(cell.cell_contents) for cell in loop.py_func.__closure__] == [int], loop
