"""Timed: a function whose calls are spans of the clock, for functions of modules and methods of classes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from threading import get_ident
from types import MethodType
from typing import Any

from powerband_attach.profile.clock import clock


class Timed:
    """A function whose calls in the clock's thread are spans.

    It is an object and not a function so that it can say how it is pickled: as the function that it wraps. cloudpickle
    copies the classes of a main script with their methods, into other processes and into files.

    Args:
        fn: Function or method.
        account: Account of its spans.
    """

    def __init__(self, fn: Callable[..., Any], account: str) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.account = fn, account

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if get_ident() != clock.thread:
            return self.fn(*args, **kwargs)
        start = clock.enter(self.account)
        try:
            return self.fn(*args, **kwargs)
        finally:
            clock.leave(self.account, start)

    def __reduce__(self) -> Any:
        return copy.copy, (self.fn,)  # a copy of a function is the function itself


class TimedEnvCall(Timed):
    """``step`` or ``reset`` of an environment: only the outermost call is a span, and only steps are counted."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if get_ident() != clock.thread or clock.env_depth:
            return self.fn(*args, **kwargs)
        clock.env_depth = 1
        start = clock.enter("env")
        try:
            return self.fn(*args, **kwargs)
        finally:
            clock.leave("env", start)
            clock.env_depth = 0
            if self.account == "step":
                count_env_steps(args[0])
                clock.mark()


_sizes: dict[tuple[type, int], int] = {}
"""(class, identity) of an environment -> its number of environments."""


def count_env_steps(env: Any) -> None:
    """Counts one call of ``step`` of the outermost environment."""
    key = (type(env), id(env))
    number = _sizes.get(key)
    if number is None:
        if len(_sizes) > 1000:  # a script that makes environments again and again
            _sizes.clear()
        number = _sizes[key] = number_of_envs(env)
    clock.env_steps += number
    if number > clock.num_envs:
        clock.num_envs = number
    name = key[0].__name__
    clock.envs[name] = clock.envs.get(name, 0) + number


def number_of_envs(env: Any) -> int:
    """Returns the number of environments of a vector environment; 1 for any other."""
    for name in ("num_envs", "env_num"):
        value = getattr(env, name, None)
        if isinstance(value, int) and value > 0:
            return value
    size = getattr(env, "batch_size", None)  # torchrl
    numel = getattr(size, "numel", None)
    return max(1, int(numel())) if callable(numel) else 1
