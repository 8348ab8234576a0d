"""Wraps the private interfaces of the metaworld package, version 3.1, that powerband uses; no other file uses them.

The functions take environments of the package, such as ``metaworld.env_dict.ALL_V3_ENVIRONMENTS["reach-v3"]()``. The
test `test_metaworld_private.py` names the version that they were written for.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

EXTRA_START = {
    "peg-insert-side": "peg_head_pos_init",
    "window-open": "window_handle_pos_init",
    "window-close": "window_handle_pos_init",
    "button-press-topdown": "_obj_to_target_init",
}
"""Task -> attribute that its reset sets and its reward reads."""


@cache
def with_shared_model(env_class: type) -> type:
    """Returns a subclass of a Meta-World environment class whose instances copy one compiled MuJoCo model.

    Each process compiles the model from XML once, in 0.1 s; a copy takes a millisecond.
    """

    class SharedModelEnv(env_class):  # type: ignore[misc, valid-type]
        def _initialize_simulation(self) -> tuple[Any, Any]:
            import mujoco

            model = copy.copy(_compiled_model(self.fullpath))
            size = model.vis.global_  # grows to the size of a frame, as in gymnasium
            size.offwidth, size.offheight = max(size.offwidth, self.width), max(size.offheight, self.height)
            return model, mujoco.MjData(model)

    SharedModelEnv.__name__ = env_class.__name__
    return SharedModelEnv


@cache
def _compiled_model(path: str) -> Any:
    import mujoco

    return mujoco.MjModel.from_xml_path(path)


def draw_goals(env: Any, seed: int | None) -> None:
    """Makes every later reset of `env`, a Meta-World environment, draw a goal from the whole range of its task.

    `seed` restarts the random sequence of goals; None continues it.
    """
    env._freeze_rand_vec, env.seeded_rand_vec = False, True
    if seed is not None:
        env.np_random = np.random.default_rng(seed)


def supports_reward_version(env: Any, version: str) -> bool:
    """Returns True if the environment has rewards of `version`, ``v1`` or ``v2``."""
    return version == "v2" or (version == "v1" and hasattr(env, "reward_function_version"))


def refresh_observation(env: Any) -> np.ndarray:
    """Computes the first 18 entries of the observation from the present state of the simulation, after a reset.

    Some tasks move their object at the end of their reset. Without this function, the observation would show the old
    position for one step.

    Returns:
        The entries (18,), which `env` also stores as the observation of the previous step.
    """
    import mujoco

    mujoco.mj_forward(env.model, env.data)
    env._prev_obs = env._get_curr_obs_combined_no_goal()
    return env._prev_obs


def replace_hand_reset(env: Any, reset_hand: Callable[[], None]) -> None:
    """Replaces the function with which each reset of `env` moves the hand to its start position by `reset_hand`."""
    env._reset_hand = reset_hand


def mark_hand_reset(env: Any) -> None:
    """Stores the present position of the hand as its start position, as the package does after it moved the hand."""
    env.init_tcp = env.tcp_center


def start_positions(task: str, env: Any) -> dict[str, Any]:
    """Returns the positions that the last reset of `env` has set and that the reward of `task` reads.

    Returns:
        Name -> position (3,) or distance, in metres. The names are goal, object, tcp (the point between the fingertips)
        and hand. ``extra`` is a further value of some tasks, such as the start of the window's handle.
    """
    positions = {
        "goal": env._target_pos,
        "object": env.obj_init_pos,
        "tcp": env.init_tcp,
        "hand": env.hand_init_pos,
    }
    if task in EXTRA_START:
        positions["extra"] = getattr(env, EXTRA_START[task])
    return positions


def viewed_element(env: Any, value: Any) -> str:
    """Returns the element of the simulation whose position `value` shows, such as "body:leftpad".

    Some attributes of an environment are views of MuJoCo's data, whose values change with every step. The result is
    empty for all other values.
    """
    import mujoco

    kinds = {"body": env.data.xpos, "site": env.data.site_xpos, "geom": env.data.geom_xpos}
    for kind, positions in kinds.items():
        if isinstance(value, np.ndarray) and np.shares_memory(value, positions):
            number = (value.ctypes.data - positions.ctypes.data) // positions.strides[0]
            return f"{kind}:{mujoco.mj_id2name(env.model, getattr(mujoco.mjtObj, f'mjOBJ_{kind.upper()}'), number)}"
    return ""


def named_geoms(env: Any) -> tuple[str, ...]:
    """Returns the geoms of the model that the source of the environment or of its base class names."""
    import inspect

    source = "".join(inspect.getsource(sys.modules[each.__module__]) for each in type(env).__mro__[:3])
    names = (env.model.geom(number).name for number in range(env.model.ngeom))
    return tuple(name for name in names if name and f'"{name}"' in source)


def attribute(env: Any, name: str) -> Any:
    """Returns an attribute of an environment, such as ``obj_init_pos``."""
    return getattr(env, name)


def fingers_touch_object(env: Any) -> bool:
    """Returns True if both fingers press on the object of the task."""
    return bool(env.touching_main_object)
