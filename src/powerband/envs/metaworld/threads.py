"""MetaWorldThreads: the ten tasks of Meta-World stepped by MuJoCo in threads of this process; bit for bit the package.

The `metaworld` package makes each environment and resets it. A step is MuJoCo's alone: a kernel without Python's lock
moves the hand's target, steps, and copies where things are; `rewards` makes observation, reward and success of that.
Models go without what is only seen: it costs time in each step and changes none.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding
from numba import float32, njit
from numba.core import types

from powerband.envs.metaworld import rewards
from powerband.envs.metaworld.single import MetaWorldEnv
from powerband.envs.metaworld.tasks import ACTION, OBS, TEN
from powerband.envs.settled import Settled
from powerband.envs.spaces import Spaces
from powerband.envs.threads import Threads

COMMON = (
    "body:hand body:rightclaw body:leftclaw body:rightpad body:leftpad site:rightEndEffector site:leftEndEffector"
).split()
OBJECT = {
    **dict.fromkeys(("reach", "push", "pick-place"), ("body:obj", "geom:objGeom")),
    "door-open": ("geom:handle", "geom:handle"),
    "drawer-open": ("body:drawer_link", "body:drawer_link"),
    "drawer-close": ("body:drawer_link", ""),
    "button-press-topdown": ("body:button", "body:button"),
    "peg-insert-side": ("site:pegGrasp", "site:pegGrasp"),
    "window-open": ("site:handleOpenStart", ""),
    "window-close": ("site:handleCloseStart", ""),
}
"""What an observation gives the place of, and how what is turned ("" for nothing)."""
CORNERS = [f"site:{corner}_corner_collision_box_{box}" for box in (1, 2) for corner in ("bottom_right", "top_left")]
HOME_STEPS = 50
"""Steps in which the package brings the hand to where it begins."""


class Simulations(NamedTuple):
    """N simulations as the kernel takes them.

    Attributes:
        model, data: (N,) uint64 addresses of mjModel and mjData.
        action: (N, 4) float32. scale: (N,) float32 metres. low, high: (N, 3) float64 metres: where the target may be.
        inputs: (N, 9) float64: two of the gripper, place and turn of the hand's target.
        source: (N, 17) uint64: address of the numbers of a place. size: (N, 17) int64: how many, 0 for none.
        place: (N, 17, 3) float64: where they are copied to.
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


nothing, address, number = types.void, types.uintp, types.int32
mj_step = types.ExternalFunction("mj_step", nothing(address, address))
mj_forward = types.ExternalFunction("mj_forward", nothing(address, address))
mj_get_state = types.ExternalFunction("mj_getState", nothing(address, address, address, number))
mj_set_state = types.ExternalFunction("mj_setState", nothing(address, address, address, number))
mju_copy = types.ExternalFunction("mju_copy", nothing(address, address, number))


@njit(nogil=True, cache=True)
def advance(s, inputs, frames, first, last):
    """One step of rows first to last; `inputs` are mjtState's bits of what is set. Needs `load_library` first."""
    for n in range(first, last):
        model, data, own = s.model[n], s.data[n], s.inputs[n]
        mj_get_state(model, data, own.ctypes.data, inputs)
        for axis in range(3):
            moved = own[2 + axis] + min(max(s.action[n, axis], float32(-1.0)), float32(1.0)) * s.scale[n]
            own[2 + axis] = min(max(moved, s.low[n, axis]), s.high[n, axis])
        own[0], own[1] = s.action[n, 3], -s.action[n, 3]
        own[5], own[6], own[7], own[8] = 1.0, 0.0, 1.0, 0.0
        mj_set_state(model, data, own.ctypes.data, inputs)
        for _ in range(frames):
            mj_step(model, data)
        mj_forward(model, data)
        for entry in range(s.size.shape[1]):
            if s.size[n, entry]:
                mju_copy(s.place[n, entry].ctypes.data, s.source[n, entry], s.size[n, entry])


def load_library() -> None:
    """Lets compiled code find the functions of MuJoCo's own library by their names.

    Raises:
        ValueError: The library is not where the package of this system would have it.
    """
    import mujoco

    folder = Path(mujoco.__file__).parent
    found = [path for path in folder.iterdir() if path.name.startswith(("libmujoco.", "mujoco.dll"))]
    if not found:
        raise ValueError(f"backend=threads: no library of MuJoCo in {folder}. Write backend=workers.")
    binding.load_library_permanently(str(found[0]))


class MetaWorldThreads:
    """Rows of several of the ten tasks. All episodes end together, as only the time limit ends one.

    Args:
        tasks: The task of each row.
        horizon: Steps of an episode, at most 500.
        threads: Threads that step and reset, the one that calls `recv` among them; 0 is one a core.
        coded: Puts the one-hot code of a row's task, by its place among these, behind its observation.

    Raises:
        ValueError: A task outside the ten.
        NotInstalled: There is no metaworld.
    """

    overlappable = True

    def __init__(self, tasks: list[str], horizon: int, threads: int = 0, coded: tuple[str, ...] = ()) -> None:
        for task in tasks:
            if task not in TEN:
                raise ValueError(f"task={task}: backend=threads has {', '.join(TEN)}. Write backend=workers.")
        self.num_envs, self.horizon, self.steps = len(tasks), horizon, 0
        made = {task: _lean(task, horizon, coded) for task in dict.fromkeys(tasks)}
        self.envs = [_own(made[task]) for task in tasks]
        self.spaces = Spaces.of(self.envs[0])
        rows, spots = self.num_envs, rewards.PLACES
        place, size = np.zeros((rows, spots, 3)), np.zeros((rows, spots), np.int64)
        action = np.zeros((rows, ACTION), np.float32)
        inner = [env.env for env in self.envs]
        self.simulations = Simulations(
            model=np.array([env.model._address for env in inner], np.uint64),
            data=np.array([env.data._address for env in inner], np.uint64),
            action=action,
            scale=np.array([env.action_scale for env in inner], np.float32),
            low=np.array([env.mocap_low for env in inner], np.float64),
            high=np.array([env.mocap_high for env in inner], np.float64),
            inputs=np.zeros((rows, 9)),
            source=np.zeros((rows, spots), np.uint64),
            size=size,
            place=place,
        )
        for row, (task, env) in enumerate(zip(tasks, inner, strict=True)):
            for spot, numbers in _sources(task, env.model, env.data).items():
                self.simulations.source[row, spot], size[row, spot] = numbers.ctypes.data, len(numbers)
        self.rows = rewards.Rows(
            task=np.array([TEN.index(task) for task in tasks]),
            place=place,
            size=size,
            start=np.zeros((rows, rewards.STARTS, 3)),
            low=np.array([env.sawyer_observation_space.low for env in inner], np.float64),
            high=np.array([env.sawyer_observation_space.high for env in inner], np.float64),
            last=np.zeros((rows, 18)),
            action=action,
            obs=np.zeros((rows, OBS + len(coded))),
            reward=np.zeros(rows),
            success=np.zeros(rows, bool),
        )
        self.succeeded = np.zeros(rows, bool)
        load_library()
        self._advance = partial(advance, self.simulations, _inputs(), self.envs[0].env.frame_skip)
        self._threads = Threads(min(threads or os.cpu_count() or 1, rows))

    def reset(self, seeds: list[int]) -> np.ndarray:
        self.steps, self.succeeded[:] = 0, False
        self._threads.begin(partial(self._reset_row, seeds), [(row,) for row in range(self.num_envs)])
        self._threads.wait()
        return self.rows.obs.copy()

    def send(self, action: np.ndarray) -> None:
        self.simulations.action[:] = action
        count, most = self.num_envs, max(1, self.num_envs // (4 * self._threads.count))
        self._threads.begin(self._advance, [(first, min(first + most, count)) for first in range(0, count, most)])

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> Settled:
        self._threads.wait()
        rewards.score(self.rows)
        self.steps += 1
        self.succeeded |= self.rows.success
        obs, reward, success = self.rows.obs.copy(), self.rows.reward.copy(), self.succeeded.astype(np.float32)
        ended = np.full(self.num_envs, self.steps >= self.horizon)
        final = obs if ended.any() else None
        obs = self.reset(next_seeds(ended)) if ended.any() else obs
        return Settled(obs, reward, np.zeros_like(ended), ended, final, {"success": success})

    def close(self) -> None:
        self._threads.close()

    def _reset_row(self, seeds: list[int], row: int) -> None:
        env = self.envs[row]
        self.rows.obs[row] = env.reset(seed=seeds[row])[0]
        self.rows.last[row] = self.rows.obs[row, :18]
        inner, start = env.env, self.rows.start[row]
        start[rewards.GOAL], start[rewards.OBJECT_START] = inner._target_pos, inner.obj_init_pos
        start[rewards.TCP_START], start[rewards.HAND_START] = inner.init_tcp, inner.hand_init_pos
        for name in ("peg_head_pos_init", "window_handle_pos_init", "_obj_to_target_init"):
            if hasattr(inner, name):
                start[rewards.AIM] = getattr(inner, name)


def _inputs() -> int:
    """What a step sets: the gripper, place and turn of the hand's target, in MuJoCo's order."""
    from mujoco import mjtState

    return int(mjtState.mjSTATE_CTRL | mjtState.mjSTATE_MOCAP_POS | mjtState.mjSTATE_MOCAP_QUAT)


def _lean(task: str, horizon: int, coded: tuple[str, ...]) -> MetaWorldEnv:
    """One environment of a task whose model has nothing that is only seen."""
    import mujoco

    env = MetaWorldEnv(task, horizon, one_hot=(coded.index(task), len(coded)) if coded else None)
    plan = mujoco.MjSpec.from_file(env.env.model_name)
    plan.compiler.discardvisual = True
    for number, spot in enumerate({spot for spot in OBJECT[task] if spot.startswith("geom:")}):
        kept = plan.add_tuple()  # what something else names is not taken out
        kept.name, kept.objtype, kept.objprm = f"kept{number}", [mujoco.mjtObj.mjOBJ_GEOM], [0.0]
        kept.objname = [spot.removeprefix("geom:")]
    model = plan.compile()
    model.eq_data[:] = env.env.model.eq_data
    env.env.model, env.env.data = model, mujoco.MjData(model)
    env.env.mujoco_renderer = None
    return env


def _own(made: MetaWorldEnv) -> MetaWorldEnv:
    """The same environment with a model and data of its own; nothing is compiled again."""
    import mujoco

    twin, inner = object.__new__(MetaWorldEnv), object.__new__(type(made.env))
    vars(twin).update(vars(made))
    vars(inner).update(vars(made.env))
    twin.env, inner.model = inner, copy.copy(made.env.model)
    inner.data = mujoco.MjData(inner.model)
    kept = vars(made).setdefault("kept", {})
    inner._reset_hand = partial(_bring_hand, inner, kept)
    return twin


def _bring_hand(env: Any, kept: dict[bytes, np.ndarray], steps: int = HOME_STEPS) -> None:
    """What the package's `_reset_hand` does, in one call and only where it matters.

    The package resets twice in a row and forgets what the first did to the simulation. Where bodies stand as they did
    when the state before the last step was kept, it is taken from there: only that step is left, which places all else.
    """
    import mujoco

    model, data, whole = env.model, env.data, mujoco.mjtState.mjSTATE_INTEGRATION
    if data.time == 0.0:
        key = model.body_pos.tobytes()
        if key not in kept:
            data.mocap_pos[:], data.mocap_quat[:], data.ctrl[:] = env.hand_init_pos, (1, 0, 1, 0), (-1, 1)
            mujoco.mj_step(model, data, steps * env.frame_skip - 1)
            state = np.zeros(mujoco.mj_stateSize(model, whole))
            mujoco.mj_getState(model, data, state, whole)
            if not kept:
                kept[key] = state
        else:
            mujoco.mj_setState(model, data, kept[key], whole)
        mujoco.mj_step(model, data)
    env.init_tcp = env.tcp_center


def _sources(task: str, model: Any, data: Any) -> dict[int, np.ndarray]:
    """The numbers in `data`, as views, that are copied to each place."""
    import mujoco

    where = {"body": data.xpos, "site": data.site_xpos, "geom": data.geom_xpos}
    turns = {"body": data.xquat, "site": data.site_xmat, "geom": data.geom_xmat}
    kinds = {name: getattr(mujoco.mjtObj, f"mjOBJ_{name.upper()}") for name in where}

    def found(spot: str, table: dict[str, np.ndarray]) -> np.ndarray:
        kind, name = spot.split(":")
        number = mujoco.mj_name2id(model, kinds[kind], name)
        assert number >= 0, f"{task} has no {spot}"
        return table[kind][number]

    spots = [*COMMON, OBJECT[task][0]]
    if task == "peg-insert-side":
        spots += ["site:pegHead", *CORNERS]
    views = {place: found(spot, where) for place, spot in enumerate(spots)}
    if OBJECT[task][1]:
        views[rewards.TURN] = found(OBJECT[task][1], turns)
    if task == "door-open":
        first = int(model.joint("doorjoint").qposadr[0])
        views[rewards.JOINT] = data.qpos[first : first + 1]
    return views
