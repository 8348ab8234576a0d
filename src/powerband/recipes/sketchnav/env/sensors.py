"""Sensors: adds noise to camera, GPS and compass.

The noise of a reading is a hash of (seed, row over all ranks, episodes begun, actions made, pixel), which selects an
entry of a table of the normal distribution. The number of threads and the split of the rows do not change a bit. CUDA
selects the same entries; depth and pose differ only by the rounding of floats. If rows take the episodes in order, the
number of the episode replaces row and episodes begun, so that evaluations and recordings do not depend on the number of
rows.

Scalar functions take `s`, the arrays of all agents (`AgentArrays`), `w`, the arrays of the world (`WorldArrays`), `o`,
the arrays of the sensors (`SensorArrays`), and `n`, the index of an agent.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch

from powerband.envs.numba.arrays import device_array
from powerband.envs.numba.hashing import inlined, splitmix64, stream_key
from powerband.recipes.sketchnav.settings import Sensors

SENSOR_STREAM = 0x1F83D9ABFB41BD6B
"""Separates the random stream of the sensors from that of the episodes."""
LANE_BITS = 12
"""Bits of a hash that select one entry of the table, whose last entries are 3.7 standard deviations from 0."""
LEVEL = 1 << 12
"""Number of parts of one level of colour. Noise is added to integers, which are the same bits on every device."""
FRAME, SLOT = 1 << 17, 1 << 19
"""Upper bounds of the actions of an episode, and of the pixels of an image plus the pose."""
POSE = 1 << 18
"""Slot of GPS and compass. A slot is the number of a reading within one step: a pixel, or the pose."""


class SensorArrays(NamedTuple):
    """Tables and standard deviations of the sensor noise, which the kernels read.

    Attributes:
        normal: Table of the normal distribution (4096,) float32 with variance 1.
        colour: The same table, scaled to errors of a colour (4096,) int32, in 1/4096 of a colour level.
        depth: Standard deviation of depth at 1 m, in metres.
        gps: Standard deviation of both coordinates, in metres.
        compass: Standard deviation of the heading, in radians.
    """

    normal: Any
    colour: Any
    depth: float
    gps: float
    compass: float


def sensor_arrays(sensors: Sensors, device: torch.device) -> SensorArrays:
    """Returns what the kernels need to draw the noise of `sensors`, with its tables on `device`."""
    count = 1 << LANE_BITS
    table = np.array([NormalDist().inv_cdf((k + 0.5) / count) for k in range(count)])
    table /= table.std()
    tables = table.astype(np.float32), np.round(table * sensors.rgb_noise * LEVEL).astype(np.int32)
    deviations = sensors.depth_noise, sensors.gps_noise_m, math.radians(sensors.compass_noise_deg)
    return SensorArrays(*(device_array(torch.from_numpy(t).to(device)) for t in tables), *map(float, deviations))


@inlined
def frame_key(s, w, n, seed):
    """Returns the key (uint64) of the random numbers for the sensor noise of agent `n` at this step.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        n: Index of the agent.
        seed: Seed of the environment.
    """
    who, begun = s.row[n], s.tick[n]
    if w.sequential:
        who, begun = s.episode[n], s.tick[n] * 0
    key = splitmix64(stream_key(seed, who) ^ np.uint64(SENSOR_STREAM))
    count = np.uint64((np.int64(begun) * FRAME + s.made[n]) * SLOT)
    return key + count * np.uint64(0x9E3779B97F4A7C15)


@inlined
def sensor_bits(key, slot):
    """Returns 64 random bits (uint64) for one reading.

    Args:
        key: Key of agent and step from `frame_key`.
        slot: Number of the reading: index of a pixel, or the constant `POSE` for GPS and compass.
    """
    return splitmix64(key + np.uint64(slot + 1) * np.uint64(0x9E3779B97F4A7C15))


@inlined
def table_row(bits, lane):
    """Returns an index (uint32, 0..4095) into the table of the normal distribution.

    Args:
        bits: 64 random bits (uint64).
        lane: Number, 0 to 4, of the group of 12 bits that is the index.
    """
    return np.uint32((bits >> np.uint64(LANE_BITS * lane)) & np.uint64((1 << LANE_BITS) - 1))


@inlined
def standard_normal(o, bits, lane):
    """Returns a number (float64) from the table of the standard normal distribution.

    Args:
        o: Tables and standard deviations of the noise (`SensorArrays`).
        bits: 64 random bits (uint64).
        lane: Number, 0 to 4, of the group of 12 bits that selects the number.
    """
    return np.float64(o.normal[table_row(bits, lane)])


@inlined
def add_depth_noise(o, key, n, row, column, metres, depth, scale, offset):
    """Writes the depth of one pixel of agent `n` with noise to `depth`.

    The error of triangulation grows with the square of the distance. Source: Khoshelham and Elberink 2012.

    Args:
        o: Tables and standard deviations of the noise (`SensorArrays`).
        key: Key of agent and step from `frame_key`.
        n: Index of the agent.
        row, column: Position of the pixel.
        metres: Exact depth (N, 1, S, S) in metres, in images of S x S pixels of N agents.
        depth: Depth (N, 1, S, S) uint8; written as `scale` z + `offset` for a noisy depth of z metres.
        scale, offset: Numbers that convert z to the written depth.
    """
    z = np.float64(metres[n, 0, row, column])
    z += o.depth * z * z * standard_normal(o, sensor_bits(key, row * depth.shape[3] + column), 0)
    depth[n, 0, row, column] = min(max(scale * z + offset, 0.0), 255.0)


@inlined
def add_colour_noise(o, key, n, row, column, rgb):
    """Adds noise to the colours of one pixel of agent `n`.

    Args:
        o: Tables and standard deviations of the noise (`SensorArrays`).
        key: Key of agent and step from `frame_key`.
        n: Index of the agent.
        row, column: Position of the pixel.
        rgb: Colours (N, 3, S, S) uint8 of N agents with images of S x S pixels; changed in place.
    """
    bits = sensor_bits(key, row * rgb.shape[3] + column)
    for k in range(3):
        value = np.int32(rgb[n, k, row, column]) * LEVEL + o.colour[table_row(bits, k + 1)] + LEVEL // 2
        rgb[n, k, row, column] = min(max(value // LEVEL, 0), 255)


@inlined
def add_pose_noise(s, w, o, n, seed, gps, compass):
    """Adds noise to the position and the heading that agent `n` observes.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        o: Tables and standard deviations of the noise (`SensorArrays`).
        n: Index of the agent.
        seed: Seed of the environment.
        gps: Positions (N, 2) float32 of N agents in metres; changed in place.
        compass: Headings (N, 1) float32 in radians; changed in place, within -pi to pi.
    """
    bits = sensor_bits(frame_key(s, w, n, seed), POSE)
    for k in range(2):
        gps[n, k] = np.float64(gps[n, k]) + o.gps * standard_normal(o, bits, k)
    if o.compass > 0.0:
        angle = np.float64(compass[n, 0]) + o.compass * standard_normal(o, bits, 2)
        if angle > math.pi:
            angle -= 2 * math.pi
        elif angle < -math.pi:
            angle += 2 * math.pi
        compass[n, 0] = angle
