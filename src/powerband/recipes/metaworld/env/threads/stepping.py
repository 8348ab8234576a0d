"""Steps several MuJoCo simulations with one compiled function, which runs without Python's global lock."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from numba import float32, njit

from powerband.core.machine.cache_stamp import source_checksum
from powerband.recipes.metaworld.env import mujoco_private
from powerband.recipes.metaworld.env.mujoco_private import mj_forward, mj_get_state, mj_set_state, mj_step, mju_copy


class MujocoArrays(NamedTuple):
    """Arrays of N simulations that the compiled step reads and writes.

    Attributes:
        model, data: (N,) uint64 addresses of mjModel and mjData.
        action: (N, 4) float32 in [-1, 1].
        scale: (N,) float32: metres that the hand's target moves for an action of 1.
        low, high: (N, 3) float64: bounds of the hand's target in metres.
        inputs: (N, 9) float64: two controls of the gripper, position and quaternion of the hand's target.
        source: (N, P) uint64: addresses of the values of each place, a position that a reward reads (`reward_terms`).
        size: (N, P) int64: number of values of each place, 0 if it is unused.
        place: (N, P, 3) float64: copies of the values.
    """

    model: Any
    data: Any
    action: Any
    scale: Any
    low: Any
    high: Any
    inputs: Any
    source: Any
    size: Any
    place: Any


@cache
def step_function() -> Callable[..., None]:
    """Returns the compiled function ``(arrays, input_bits, frames, first, last)``.

    It steps the simulations ``first`` to ``last`` - 1 of ``arrays`` (`MujocoArrays`). ``input_bits`` are
    the mjtState bits of the inputs. ``frames`` is the number of MuJoCo steps per environment step.
    `mujoco_private.load_library` must have been called before the first call.
    """
    made_of = source_checksum(mujoco_private)

    @njit(nogil=True, cache=True)
    def step_rows(s, input_bits, frames, first, last):
        for n in range(first + 0 * made_of, last):
            model, data, own = s.model[n], s.data[n], s.inputs[n]
            mj_get_state(model, data, own.ctypes.data, input_bits)
            for axis in range(3):
                moved = own[2 + axis] + min(max(s.action[n, axis], float32(-1.0)), float32(1.0)) * s.scale[n]
                own[2 + axis] = min(max(moved, s.low[n, axis]), s.high[n, axis])
            own[0], own[1] = s.action[n, 3], -s.action[n, 3]
            own[5], own[6], own[7], own[8] = 1.0, 0.0, 1.0, 0.0
            mj_set_state(model, data, own.ctypes.data, input_bits)
            for _ in range(frames):
                mj_step(model, data)
            mj_forward(model, data)
            for entry in range(s.size.shape[1]):
                if s.size[n, entry]:
                    mju_copy(s.place[n, entry].ctypes.data, s.source[n, entry], s.size[n, entry])

    return step_rows
