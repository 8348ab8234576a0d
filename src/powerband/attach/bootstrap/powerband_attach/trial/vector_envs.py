"""Vector environments: steps the environments of Gymnasium one after another, or in one process per environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from powerband_attach.imports import when_imported
from powerband_attach.trial import settings
from powerband_attach.trial.replace import bound, replace

COMMON = ("env_fns", "copy", "observation_mode", "autoreset_mode")
"""Arguments that both classes take."""


def install() -> None:
    """Replaces ``make_vec`` and one of the two classes if the change is ``vector_env``."""
    mode = settings.change("vector_env")
    if mode is None:
        return
    replace("gymnasium.envs.registration", "make_vec", lambda original: _make_vec(original, mode))
    if mode == "async":
        when_imported(
            "gymnasium.vector.sync_vector_env", lambda module: _creates(module.SyncVectorEnv, _async_vector_env)
        )
    else:
        when_imported(
            "gymnasium.vector.async_vector_env", lambda module: _creates(module.AsyncVectorEnv, _sync_vector_env)
        )


def _make_vec(original: Callable[..., Any], mode: str) -> Callable[..., Any]:
    def make_vec(*args: Any, **kwargs: Any) -> Any:
        if not settings.here():
            return original(*args, **kwargs)
        settings.made("vector_env")
        return original(**{**bound(original, args, kwargs), "vectorization_mode": mode})

    return make_vec


def _async_vector_env() -> Any:
    from gymnasium.vector.async_vector_env import AsyncVectorEnv

    return AsyncVectorEnv


def _sync_vector_env() -> Any:
    from gymnasium.vector.sync_vector_env import SyncVectorEnv

    return SyncVectorEnv


def _creates(cls: Any, other: Callable[[], Any]) -> None:
    """Makes calls of a class return an object of another class. Subclasses stay as they are."""
    init = cls.__init__

    def new(called: Any, *args: Any, **kwargs: Any) -> Any:
        if called is not cls or not settings.here():
            return object.__new__(called)
        settings.made("vector_env")
        arguments = bound(init, (None, *args), kwargs)
        return other()(**{name: arguments[name] for name in COMMON if name in arguments})

    cls.__new__ = staticmethod(new)
