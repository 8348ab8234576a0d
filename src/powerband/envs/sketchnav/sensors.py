"""Sensors: what camera, GPS and compass read wrong. All noise is off unless asked for.

A deviation is a hash of (seed, row over all ranks, episodes begun, actions made, pixel), looked up in one table of the
normal distribution: the same bits for any number of threads and split of the rows; on CUDA the same row of the table,
and what is added to depth and pose is the same but for the rounding of floats. Where rows take the episodes in turns,
the number of the episode stands for row and episodes begun: an evaluation or a recording draws the same whatever the
number of rows. Scalar functions; `s` are the agents' arrays, `w` the world's, `o` the sensors'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch

from powerband.envs.arrays import device_array
from powerband.envs.hashing import inlined, mix, stream_key

from .world import DIMMING

SENSES = 0x1F83D9ABFB41BD6B  # tells the stream of the sensors from that of the episodes
LANE_BITS = 12
"""Bits of a hash that one number takes: the row of the table, whose ends are 3.7 standard deviations."""
LEVEL = 1 << 12
"""Parts of a colour's level: whole numbers are the same bits everywhere."""
FRAME, SLOT = 1 << 17, 1 << 19
"""More than the actions of an episode, and than the pixels of a picture and the pose."""
POSE = 1 << 18
"""Slot of GPS and compass."""


@dataclass(frozen=True)
class Sensors:
    """How light falls off, and what is added to each reading.

    Raises:
        ValueError: A number out of range.
    """

    shading: float = DIMMING
    """Light falls with depth as 1 / (1 + shading z), z in metres; 0 lights near and far alike (renderer=caster)."""
    depth_noise: float = 0.0
    """Standard deviation of depth at 1 m, in metres; it grows with the square of depth and is added before depth is cut
    to 0.5 to 5 m. 0.001425 is a Kinect's (Khoshelham and Elberink 2012): 36 mm at 5 m."""
    rgb_noise: float = 0.0
    """Standard deviation of each colour of each pixel, in levels of 255."""
    gps_noise_m: float = 0.0
    """Standard deviation of both coordinates of GPS at each reading, in metres; it does not build up."""
    compass_noise_deg: float = 0.0
    """Standard deviation of the compass at each reading, in degrees."""

    def __post_init__(self) -> None:
        limits = {"shading": 1.0, "depth_noise": 0.1, "rgb_noise": 128.0, "gps_noise_m": 5.0, "compass_noise_deg": 60.0}
        for name, most in limits.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}={getattr(self, name):g}: give 0 to {most:g}.")

    @property
    def pictures(self) -> bool:
        """Colours or depth are noisy."""
        return self.depth_noise > 0 or self.rgb_noise > 0

    @property
    def pose(self) -> bool:
        """GPS or compass are noisy."""
        return self.gps_noise_m > 0 or self.compass_noise_deg > 0


class SensorArrays(NamedTuple):
    """`Sensors` as the kernels read them: `normal` (4096,) float32 of variance 1; `colour` (4096,) int32, the same as
    errors of a colour in parts of a level; deviations of depth, GPS and compass in metres and radians."""

    normal: Any
    colour: Any
    depth: float
    gps: float
    compass: float


def sensor_arrays(sensors: Sensors, device: torch.device) -> SensorArrays:
    """The table and the deviations on `device`."""
    count = 1 << LANE_BITS
    table = np.array([NormalDist().inv_cdf((k + 0.5) / count) for k in range(count)])
    table /= table.std()
    tables = table.astype(np.float32), np.round(table * sensors.rgb_noise * LEVEL).astype(np.int32)
    deviations = sensors.depth_noise, sensors.gps_noise_m, math.radians(sensors.compass_noise_deg)
    return SensorArrays(*(device_array(torch.from_numpy(t).to(device)) for t in tables), *map(float, deviations))


@inlined
def frame_key(s, w, n, seed):
    """uint64 key of all that row `n` reads at this step."""
    who, begun = s.row[n], s.tick[n]
    if w.in_turns:
        who, begun = s.episode[n], s.tick[n] * 0
    key = mix(stream_key(seed, who) ^ np.uint64(SENSES))
    count = np.uint64((np.int64(begun) * FRAME + s.made[n]) * SLOT)
    return key + count * np.uint64(0x9E3779B97F4A7C15)


@inlined
def reading(key, slot):
    """64 random bits for a slot of a frame."""
    return mix(key + np.uint64(slot + 1) * np.uint64(0x9E3779B97F4A7C15))


@inlined
def row_of(bits, lane):
    """Row of the table for lane 0 to 4 of `bits`."""
    return np.uint32((bits >> np.uint64(LANE_BITS * lane)) & np.uint64((1 << LANE_BITS) - 1))


@inlined
def deviation(o, bits, lane):
    """A normal number of variance 1 (float64) from lane 0 to 4 of `bits`."""
    return np.float64(o.normal[row_of(bits, lane)])


@inlined
def blur_depth(o, key, n, row, column, metres, depth, scale, offset):
    """Reads one pixel of `metres` (N, 1, S, S) into `depth` uint8: `scale` z + `offset` of a noisy z.

    Source: Khoshelham and Elberink 2012: what is triangulated errs by the square of its distance.
    """
    z = np.float64(metres[n, 0, row, column])
    z += o.depth * z * z * deviation(o, reading(key, row * depth.shape[3] + column), 0)
    depth[n, 0, row, column] = min(max(scale * z + offset, 0.0), 255.0)


@inlined
def blur_colours(o, key, n, row, column, rgb):
    """Adds to the colours of one pixel of rgb (N, 3, S, S) uint8."""
    bits = reading(key, row * rgb.shape[3] + column)
    for k in range(3):
        value = np.int32(rgb[n, k, row, column]) * LEVEL + o.colour[row_of(bits, k + 1)] + LEVEL // 2
        rgb[n, k, row, column] = min(max(value // LEVEL, 0), 255)


@inlined
def blur_pose(s, w, o, n, seed, gps, compass):
    """Adds to gps (N, 2) and compass (N, 1), float32; the compass stays within a turn."""
    bits = reading(frame_key(s, w, n, seed), POSE)
    for k in range(2):
        gps[n, k] = np.float64(gps[n, k]) + o.gps * deviation(o, bits, k)
    if o.compass > 0.0:
        angle = np.float64(compass[n, 0]) + o.compass * deviation(o, bits, 2)
        if angle > math.pi:
            angle -= 2 * math.pi
        elif angle < -math.pi:
            angle += 2 * math.pi
        compass[n, 0] = angle
