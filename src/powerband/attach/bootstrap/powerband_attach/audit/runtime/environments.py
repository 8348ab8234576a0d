"""Environments: counts the steps of each class with ``step`` and ``reset``.

A thread-local depth separates the outermost call, which is one step of the script, from the innermost one, which is a
step of an environment that really steps. A batched environment counts as many as its rewards.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

from powerband_attach.audit import facts, settings
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely

_local = threading.local()
_stepping: set[int] = set()


def install() -> None:
    """Watches the environment classes of Gymnasium and gym; those of the user's code are found later."""
    for name in ("gymnasium.core", "gym.core"):
        when_imported(name, lambda module: _watch_subclasses(module.Env))
    for name in ("gymnasium.vector.vector_env", "stable_baselines3.common.vec_env.base_vec_env"):
        when_imported(name, lambda module: _watch_subclasses(getattr(module, "VectorEnv", None) or module.VecEnv))


def watch_user_classes() -> None:
    """Wraps the environment classes that the user's modules define. Called after parsing and before each forward."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not settings.is_user_file(file):
            continue
        for cls in list(vars(module).values()):
            if isinstance(cls, type) and cls.__module__ == module.__name__ and callable(getattr(cls, "reset", None)):
                safely(_wrap)(cls)


def _watch_subclasses(base: Any) -> None:
    original = base.__init_subclass__.__func__

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        original(cls, **kwargs)
        safely(_wrap)(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)


def _wrap(cls: Any) -> None:
    step = cls.__dict__.get("step")
    if not callable(step) or hasattr(step, "__powerband__") or hasattr(step, "__isabstractmethod__"):
        return

    @functools.wraps(step)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        depth = _local.depth = getattr(_local, "depth", 0) + 1
        _local.deepest = depth
        try:
            result = step(self, *args, **kwargs)
        finally:
            _local.depth -= 1
        safely(_note)(self, result, depth)
        if depth == 1:
            facts.stop_if_due()
        return result

    counted.__powerband__ = True  # type: ignore[attr-defined]
    cls.step = counted


def _note(env: Any, result: Any, depth: int) -> None:
    if depth == getattr(_local, "deepest", depth):  # no environment inside has stepped
        rows = _rows(result)
        _stepping.add(id(env))
        facts.values["environments"] = len(_stepping) * rows
        facts.count("single_steps", rows)
    if depth == 1:
        facts.event("e")
        facts.count("env_steps")


def _rows(result: Any) -> int:
    reward = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    shape = getattr(reward, "shape", None)
    return int(shape[0]) if shape else 1
