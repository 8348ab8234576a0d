"""Lean models: creates MuJoCo models of the ten tasks without visual parts, each compiled once for all simulations.

Visual parts cost time in each step and do not change it.
"""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import numpy as np

from powerband.recipes.metaworld.env import metaworld_private
from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv
from powerband.recipes.metaworld.env.threads.reward_terms import JOINT, TURN

COMMON_PLACES = (
    "body:hand body:rightclaw body:leftclaw body:rightpad body:leftpad site:rightEndEffector site:leftEndEffector"
).split()
OBJECT_PLACES = {
    **dict.fromkeys(("reach", "push", "pick-place"), ("body:obj", "geom:objGeom")),
    "door-open": ("geom:handle", "geom:handle"),
    "drawer-open": ("body:drawer_link", "body:drawer_link"),
    "drawer-close": ("body:drawer_link", ""),
    "button-press-topdown": ("body:button", "body:button"),
    "peg-insert-side": ("site:pegGrasp", "site:pegGrasp"),
    "window-open": ("site:handleOpenStart", ""),
    "window-close": ("site:handleCloseStart", ""),
}
"""Task -> the model elements whose position and whose orientation an observation contains; empty for no orientation."""
BOX_CORNERS = [f"site:{corner}_corner_collision_box_{box}" for box in (1, 2) for corner in ("bottom_right", "top_left")]
HAND_RESET_STEPS = 50
"""Environment steps in which the metaworld package moves the hand to its start position."""


def lean_env(task: str, horizon: int, one_hot_tasks: tuple[str, ...]) -> MetaWorldEnv:
    """Creates one environment of a task whose model has no visual parts.

    Args:
        task: Name of the task.
        horizon: Steps of an episode.
        one_hot_tasks: Tasks of the one-hot task code that is appended to observations; empty for no code.
    """
    import mujoco

    env = MetaWorldEnv(
        task, horizon, one_hot=(one_hot_tasks.index(task), len(one_hot_tasks)) if one_hot_tasks else None
    )
    model = copy.copy(_lean_model(task, env.env.model_name))
    model.eq_data[:] = env.env.model.eq_data
    env.env.model, env.env.data = model, mujoco.MjData(model)
    env.env.mujoco_renderer = None
    return env


@cache
def _lean_model(task: str, file: str) -> Any:
    """Compiles the model of a task in `file` without visual parts, once per process."""
    import mujoco

    spec = mujoco.MjSpec.from_file(file)
    spec.compiler.discardvisual = True
    for number, place in enumerate({place for place in OBJECT_PLACES[task] if place.startswith("geom:")}):
        reference = spec.add_tuple()  # the compiler keeps elements that another element names
        reference.name, reference.objtype, reference.objprm = f"kept{number}", [mujoco.mjtObj.mjOBJ_GEOM], [0.0]
        reference.objname = [place.removeprefix("geom:")]
    return spec.compile()


def copy_env(env: MetaWorldEnv, home_state: dict[bytes, np.ndarray]) -> MetaWorldEnv:
    """Copies an environment, its model and its data, without compiling the model again.

    Args:
        env: Result of `lean_env`.
        home_state: Cache for resets, which all copies of `env` share and fill; empty for the first copy. It maps the
            positions of bodies, as bytes, to MuJoCo's state one simulation step before the hand is at its start.
    """
    import mujoco

    twin, inner = object.__new__(MetaWorldEnv), object.__new__(type(env.env))
    vars(twin).update(vars(env))
    vars(inner).update(vars(env.env))
    twin.env, inner.model = inner, copy.copy(env.env.model)
    inner.data = mujoco.MjData(inner.model)
    metaworld_private.replace_hand_reset(inner, partial(_reset_hand, inner, home_state))
    return twin


def _reset_hand(env: Any, home_state: dict[bytes, np.ndarray], steps: int = HAND_RESET_STEPS) -> None:
    """Moves the hand of `env` to its start position with `steps` steps in one call, and only if this has an effect.

    The metaworld package resets twice in a row, and the second reset discards the simulation of the first. The state
    before the last step is cached in `home_state`. While bodies have the same positions, this state is restored and
    only the last step is simulated, which recomputes all other quantities.
    """
    import mujoco

    model, data, whole = env.model, env.data, mujoco.mjtState.mjSTATE_INTEGRATION
    if data.time == 0.0:
        key = model.body_pos.tobytes()
        if key not in home_state:
            data.mocap_pos[:], data.mocap_quat[:], data.ctrl[:] = env.hand_init_pos, (1, 0, 1, 0), (-1, 1)
            mujoco.mj_step(model, data, steps * env.frame_skip - 1)
            state = np.zeros(mujoco.mj_stateSize(model, whole))
            mujoco.mj_getState(model, data, state, whole)
            if not home_state:
                home_state[key] = state
        else:
            mujoco.mj_setState(model, data, home_state[key], whole)
        mujoco.mj_step(model, data)
    metaworld_private.mark_hand_reset(env)


def place_views(task: str, model: Any, data: Any) -> dict[int, np.ndarray]:
    """Returns views of the arrays in MuJoCo's `data` that the reward of a task reads.

    Args:
        task: Name of the task.
        model, data: mujoco.MjModel and mujoco.MjData of a simulation of the task.

    Returns:
        Index in ``RewardArrays.place`` -> view of a position, an orientation or an angle. The constants of
        `reward_terms` name the indices.
    """
    import mujoco

    positions = {"body": data.xpos, "site": data.site_xpos, "geom": data.geom_xpos}
    orientations = {"body": data.xquat, "site": data.site_xmat, "geom": data.geom_xmat}
    kinds = {"body": mujoco.mjtObj.mjOBJ_BODY, "site": mujoco.mjtObj.mjOBJ_SITE, "geom": mujoco.mjtObj.mjOBJ_GEOM}

    def view(element: str, table: dict[str, np.ndarray]) -> np.ndarray:
        kind, name = element.split(":")
        number = mujoco.mj_name2id(model, kinds[kind], name)
        assert number >= 0, f"{task} has no {element}"
        return table[kind][number]

    position, orientation = OBJECT_PLACES[task]
    elements = [*COMMON_PLACES, position]
    if task == "peg-insert-side":
        elements += ["site:pegHead", *BOX_CORNERS]
    views = {place: view(element, positions) for place, element in enumerate(elements)}
    if orientation:
        views[TURN] = view(orientation, orientations)
    if task == "door-open":
        first = int(model.joint("doorjoint").qposadr[0])
        views[JOINT] = data.qpos[first : first + 1]
    return views
