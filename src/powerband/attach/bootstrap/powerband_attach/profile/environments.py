"""Environments: times ``step``, ``reset`` and ``render`` of all environment classes of the script and its packages.

Classes appear at any time, so `wrap_new_classes` looks for them again and again. A class is changed once.
"""

from __future__ import annotations

import functools
from types import FunctionType, ModuleType
from typing import Any

from powerband_attach.imports import when_imported
from powerband_attach.profile.rendering import timed_render
from powerband_attach.profile.timed import is_timed, timed_env_call

BASES = {
    "gymnasium.core": ("Env",),
    "gymnasium.vector.vector_env": ("VectorEnv",),
    "gym.core": ("Env",),
    "gym.vector.vector_env": ("VectorEnv",),
    "stable_baselines3.common.vec_env.base_vec_env": ("VecEnv",),
    "tianshou.env.venvs": ("BaseVectorEnv",),
    "torchrl.envs.common": ("EnvBase",),
    "pettingzoo.utils.env": ("AECEnv", "ParallelEnv"),
    "dm_env._environment": ("Environment",),
    "envpool.python.envpool": ("EnvPoolMixin",),
    "skrl.envs.wrappers.torch.base": ("Wrapper", "MultiAgentEnvWrapper"),
    "rsl_rl.env.vec_env": ("VecEnv",),
}
"""Module -> base classes of its environments."""
METHODS = ("step", "reset", "render")
DRAWING = {"mujoco.renderer": "Renderer"}
"""Module -> class whose method ``render`` draws images for environments that do not do it in their own ``render``."""

_bases: list[type] = []
_seen: set[type] = set()


def watch() -> None:
    """Wraps the environment classes of each known package when it is imported."""
    for name in BASES:
        when_imported(name, _add_bases)
    for name, cls in DRAWING.items():
        when_imported(name, functools.partial(_time_drawing, name=cls))


def _add_bases(module: ModuleType) -> None:
    for name in BASES[module.__name__]:
        base = getattr(module, name, None)
        if isinstance(base, type):
            _bases.append(base)
    wrap_new_classes()


def _time_drawing(module: ModuleType, name: str) -> None:
    cls: Any = getattr(module, name, None)
    if isinstance(cls, type) and not is_timed(cls.__dict__["render"]):
        cls.render = timed_render(cls.__dict__["render"])  # type: ignore[attr-defined]


def wrap_new_classes() -> None:
    """Wraps the methods of the environment classes that were defined since the last call."""
    pending = list(_bases)
    visited: set[type] = set()
    while pending:
        cls = pending.pop()
        if cls not in visited:
            visited.add(cls)
            pending += type.__subclasses__(cls)
            if cls not in _seen:
                _seen.add(cls)
                _wrap(cls)


def _wrap(cls: Any) -> None:
    for name in METHODS:
        method = cls.__dict__.get(name)
        # Only plain functions: a static method, or a method of a compiled class, stays as it is.
        if isinstance(method, FunctionType) and not is_timed(method):
            setattr(cls, name, timed_render(method) if name == "render" else timed_env_call(method, name))
