"""Environments: counts the steps of each class with ``step`` and ``reset``.

A thread-local depth separates the outermost call, which is one step of the script, from the innermost one, which is a
step of an environment that really steps. A batched environment counts as many as its rewards.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import weakref
from types import MethodType
from typing import Any

from powerband_attach import process, user_code
from powerband_attach.audit import facts
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely

_local = threading.local()
_stepping: dict[int, int] = {}
"""id of an environment that really steps -> the number of environments in it."""


def install() -> None:
    """Watches the environment classes of Gymnasium and gym; those of the user's code are found later."""
    process.after_fork_in_child.append(_forget)
    for name in ("gymnasium.core", "gym.core"):
        when_imported(name, lambda module: _watch_subclasses(module.Env))
    for name in ("gymnasium.vector.vector_env", "stable_baselines3.common.vec_env.base_vec_env"):
        when_imported(name, lambda module: _watch_subclasses(getattr(module, "VectorEnv", None) or module.VecEnv))


def watch_user_classes() -> None:
    """Wraps the environment classes that the user's modules define. Called after parsing and before some forwards."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not user_code.is_user_file(file):
            continue
        for cls in list(vars(module).values()):
            if isinstance(cls, type) and cls.__module__ == module.__name__ and callable(getattr(cls, "reset", None)):
                safely(_wrap)(cls)


def _watch_subclasses(base: Any) -> None:
    # That of `object`, and that of `typing.Generic` since Python 3.12, are C code without ``__func__``.
    original = getattr(base.__init_subclass__, "__func__", None)

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        if original is not None:
            original(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        safely(_wrap)(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)


class Counted:
    """``step`` of an environment class. It is pickled as the function that it wraps.

    cloudpickle copies the classes of a main script with their methods, and a function of this module with its globals.

    Args:
        fn: The method.
    """

    __powerband__ = True

    def __init__(self, fn: Any) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, env: Any, *args: Any, **kwargs: Any) -> Any:
        depth = _local.depth = getattr(_local, "depth", 0) + 1
        _local.deepest = depth
        try:
            result = self.fn(env, *args, **kwargs)
        finally:
            _local.depth = depth - 1  # also in a process that was forked inside of the call
        safely(_note)(env, result, depth)
        if depth == 1:
            facts.stop_if_due()
        return result

    def __reduce__(self) -> Any:
        return copy.copy, (self.fn,)  # a copy of a function is the function itself


def _forget() -> None:
    """A forked process counts its own environments, also if the fork was inside of a step."""
    _stepping.clear()
    _local.depth = 0


def _wrap(cls: Any) -> None:
    step = cls.__dict__.get("step")
    if not callable(step) or isinstance(step, (staticmethod, classmethod)):
        return
    if not (hasattr(step, "__powerband__") or hasattr(step, "__isabstractmethod__")):
        cls.step = Counted(step)


def _note(env: Any, result: Any, depth: int) -> None:
    if depth == getattr(_local, "deepest", depth):  # no environment inside has stepped
        rows = _rows(result)
        _count_environments(env, rows)
        facts.count("single_steps", rows)
    if depth == 1:
        facts.event("e")
        facts.count("env_steps")


def _count_environments(env: Any, rows: int) -> None:
    """Notes the largest number of environments that have stepped and exist at the same time."""
    key = id(env)
    if key not in _stepping:
        with contextlib.suppress(TypeError):  # an object without weak references
            weakref.finalize(env, _stepping.pop, key, None).atexit = False  # another object may get its id
    if _stepping.get(key) != rows:
        _stepping[key] = rows
        facts.values["environments"] = max(facts.values.get("environments", 0), sum(_stepping.values()))


def _rows(result: Any) -> int:
    reward = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    shape = getattr(reward, "shape", None)
    return int(shape[0]) if shape else 1
