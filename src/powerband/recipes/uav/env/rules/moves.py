"""Moves: moves the UAVs of one mission, masks and samples their moves, and exchanges their messages.

numba compiles the functions for CPU threads and for CUDA. A move `action` is 0 up, 1 back along x, 2 back along y, 3
forward along y, 4 forward along x, 5 down. Parameter names: `s` is a `MissionArrays`, the state of all missions; `w` is
a `WorldArrays`, the constants of the world; `n` is the index of the mission in `s`; `i` and `j` are UAVs.

A random number depends only on the seed, the number of the mission over all ranks, the tick and the purpose. Purposes
are slots: 0.. for the start cells of the UAVs, 1024.. for lost messages, 2048.. for the communication range and the
hidden map of the mission. The sensor noise has a separate stream.

Source: Westheider, Rueckin and Popovic 2023 (arXiv 2303.01150), sections III and IV.
"""

import numpy as np

from powerband.envs.numba.hashing import inlined, random_bits, stream_key
from powerband.recipes.uav.settings import (
    BACK_X,
    BACK_Y,
    DOWN,
    LATTICE,
    MAX_AGENTS,
    NUM_ACTIONS,
    ON_X,
    ON_Y,
    SPACING_M,
    UP,
)

LOST_SLOT = 1024


# -- moves ------------------------------------------------------------------------------------------------------------


@inlined
def step_x(action):
    """Returns the change of the lattice coordinate x by the move `action`: 1, 0 or -1."""
    return np.int64(action == ON_X) - np.int64(action == BACK_X)


@inlined
def step_y(action):
    """Returns the change of the lattice coordinate y by the move `action`: 1, 0 or -1."""
    return np.int64(action == ON_Y) - np.int64(action == BACK_Y)


@inlined
def step_z(action):
    """Returns the change of the altitude index by the move `action`: 1, 0 or -1."""
    return np.int64(action == UP) - np.int64(action == DOWN)


@inlined
def clamp_index(value, limit):
    """Clamps `value` to 0..limit - 1."""
    return min(max(value, 0), limit - 1)


@inlined
def next_cell(s, n, i, action):
    """Returns the x-y cell (11 x + y) of UAV `i` of mission `n` after the move `action`.

    A UAV at the border of the lattice stays. `s`: state of all missions.
    """
    x = clamp_index(s.position[n, i, 0] + step_x(action), LATTICE)
    return x * LATTICE + clamp_index(s.position[n, i, 1] + step_y(action), LATTICE)


@inlined
def move(s, w, n, i, action):
    """Moves UAV `i` of mission `n` by `action`; the UAV stays if the move leads out of the lattice.

    `s`: state of all missions; `w`: constants of the world.
    """
    s.position[n, i, 0] = clamp_index(s.position[n, i, 0] + step_x(action), LATTICE)
    s.position[n, i, 1] = clamp_index(s.position[n, i, 1] + step_y(action), LATTICE)
    s.position[n, i, 2] = clamp_index(s.position[n, i, 2] + step_z(action), w.height.shape[0])


@inlined
def move_team(s, w, n, action):
    """Moves all UAVs of mission `n` by `action` (N, A), and advances `s.tick`, so that the next random draws differ.

    `s`: state of all missions; `w`: constants of the world.
    """
    for i in range(w.agents):
        move(s, w, n, i, action[n, i])
    s.tick[n] += 1


@inlined
def allowed_moves(s, w, n, i):
    """Returns which moves of UAV `i` of mission `n` stay within the lattice and the altitudes.

    The result is an integer whose bit a is set if move a, 0..5, is allowed. `s`: state of all missions; `w`: constants
    of the world.
    """
    x, y, z = s.position[n, i, 0], s.position[n, i, 1], s.position[n, i, 2]
    allowed = 0
    allowed |= np.int64(z + 1 < w.height.shape[0]) << UP
    allowed |= np.int64(z > 0) << DOWN
    allowed |= np.int64(x > 0) << BACK_X
    allowed |= np.int64(x + 1 < LATTICE) << ON_X
    allowed |= np.int64(y > 0) << BACK_Y
    allowed |= np.int64(y + 1 < LATTICE) << ON_Y
    return allowed


@inlined
def exclude_taken_cells(s, n, i, allowed, chosen):
    """Removes moves to x-y cells that UAVs with a lower index will occupy, but never the last remaining move.

    Args:
        s: State of all missions.
        n: Index of the mission.
        i: Index of the UAV.
        allowed: Allowed moves of UAV `i`, bit a for move a.
        chosen: (N, A): moves of the UAVs before `i` in this step.

    Returns:
        The remaining moves, bit a for move a.
    """
    for j in range(i):
        taken = next_cell(s, n, j, chosen[n, j])
        for action in range(NUM_ACTIONS):
            bit = 1 << action
            if allowed & bit and allowed != bit and next_cell(s, n, i, action) == taken:
                allowed ^= bit
    return allowed


@inlined
def sample_move(s, w, n, i, probability, noise, explore, chosen, mask):
    """Chooses the move of UAV `i` of mission `n`, after the UAVs with a lower index have chosen.

    Args:
        s: State of all missions.
        w: Constants of the world.
        n: Index of the mission.
        i: Index of the UAV.
        probability: (N, A, 6), probability of each move before masking.
        noise: (N, A) uniform random numbers in [0, 1).
        explore: True samples an allowed move by `probability`; False takes the most likely allowed move.
        chosen: (N missions, A UAVs) int64: the moves of UAVs with a lower index; the move of UAV `i` is written.
        mask: (N, A, 6) bool, written: the allowed moves of this UAV.
    """
    allowed = exclude_taken_cells(s, n, i, allowed_moves(s, w, n, i), chosen)
    total = 0.0
    for action in range(NUM_ACTIONS):
        mask[n, i, action] = allowed >> action & 1
        if allowed >> action & 1:
            total += probability[n, i, action]
    rest, best, selected = noise[n, i] * total, -1.0, -1
    for action in range(NUM_ACTIONS):
        if allowed >> action & 1:
            p = probability[n, i, action]
            if explore:
                if rest >= 0.0:
                    selected = action
                rest -= p
            elif p > best:
                best, selected = p, action
    chosen[n, i] = selected


# -- messages ---------------------------------------------------------------------------------------------------------


@inlined
def message_received(s, w, n, i, j, key):
    """Returns True if UAV `i` of mission `n` receives the message of UAV `j` after the current move.

    It does if UAV j is within the communication range and the message is not lost. `s`: state of all missions; `w`:
    constants of the world; `key`: key of the random stream of the mission, see `stream_key`.
    """
    dx = SPACING_M * (s.position[n, i, 0] - s.position[n, j, 0])
    dy = SPACING_M * (s.position[n, i, 1] - s.position[n, j, 1])
    dz = w.height[s.position[n, i, 2]] - w.height[s.position[n, j, 2]]
    if dx * dx + dy * dy + dz * dz > s.comm_range[n] * s.comm_range[n]:
        return False
    lost = random_bits(key, s.tick[n], LOST_SLOT + i * MAX_AGENTS + j) >> np.uint64(32)
    return np.int64(lost) >= w.failure


@inlined
def exchange(s, w, n, seed):
    """Decides which messages the UAVs of mission `n` receive from each other, and writes the result to `s.heard`.

    Bit j of s.heard[n, i] is set if UAV i receives the message of UAV j, which contains its position and measurement.
    Each UAV receives its own. `s`: state of all missions; `w`: constants of the world; `seed`: seed of the random
    draws.
    """
    key = stream_key(seed, s.mission[n])
    for i in range(w.agents):
        heard = 0
        for j in range(w.agents):
            if i == j or message_received(s, w, n, i, j, key):
                heard |= 1 << j
        s.heard[n, i] = heard
