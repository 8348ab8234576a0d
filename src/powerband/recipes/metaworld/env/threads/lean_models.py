"""Lean models: creates MuJoCo models of tasks without visual parts, each compiled once for all simulations.

Visual parts cost time in each step and do not change it.
"""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import numpy as np

from powerband.recipes.metaworld.env import metaworld_private
from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv

HAND_RESET_STEPS = 50
"""Environment steps in which the metaworld package moves the hand to its start position."""


def lean_env(task: str, horizon: int, one_hot_tasks: tuple[str, ...], geoms: tuple[str, ...]) -> MetaWorldEnv:
    """Creates one environment of a task whose model has no visual parts.

    Args:
        task: Name of the task.
        horizon: Steps of an episode.
        one_hot_tasks: Tasks of the one-hot task code that is appended to observations; empty for no code.
        geoms: Geoms that the model keeps although they are only visible.
    """
    import mujoco

    env = MetaWorldEnv(
        task, horizon, one_hot=(one_hot_tasks.index(task), len(one_hot_tasks)) if one_hot_tasks else None
    )
    model = copy.copy(_lean_model(env.env.model_name, geoms))
    model.eq_data[:] = env.env.model.eq_data
    env.env.model, env.env.data = model, mujoco.MjData(model)
    env.env.mujoco_renderer = None
    return env


@cache
def _lean_model(file: str, geoms: tuple[str, ...]) -> Any:
    """Compiles the model in `file` without visual parts other than `geoms`, once per process."""
    import mujoco

    spec = mujoco.MjSpec.from_file(file)
    spec.compiler.discardvisual = True
    for number, geom in enumerate(dict.fromkeys(geoms)):
        reference = spec.add_tuple()  # the compiler keeps elements that another element names
        reference.name, reference.objtype, reference.objprm = f"kept{number}", [mujoco.mjtObj.mjOBJ_GEOM], [0.0]
        reference.objname = [geom]
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
