"""Timed functions: functions of modules and methods of classes whose calls are spans of the clock.

A timed function is a plain function: Python calls it several times faster than an object with ``__call__``, and a step
of an environment may pass through ten of them. cloudpickle copies the classes of a main script with their methods, into
other processes and into files. A copied function must therefore work without this package, so its body uses nothing of
this package but the clock, whose copy belongs to no thread (`Clock.__reduce__`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakSet

from powerband_attach.profile.clock import clock, env_account

VARIABLE_ARGUMENTS = 0x0C
"""Bits of ``co_flags`` of a function with ``*args`` or ``**kwargs``."""

_timed: WeakSet[Callable[..., Any]] = WeakSet()


def is_timed(fn: Any) -> bool:
    """Returns whether this module has made a function, in this process."""
    return isinstance(fn, FunctionType) and fn in _timed


def like(fn: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a timed function the name, the documentation and the signature of the function that it calls."""
    functools.update_wrapper(call, fn)
    _timed.add(call)
    return call


def timed(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a function like `fn` whose calls in the clock's thread are spans of the account `name`."""
    account = clock.account(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if get_ident() != clock.thread:
            return fn(*args, **kwargs)
        if clock.at_next_span is not None:
            clock.announce(account)
        clock.note((perf_counter_ns(), account))
        try:
            return fn(*args, **kwargs)
        finally:
            clock.note((perf_counter_ns(), None))

    return like(fn, call)


def timed_env_call(fn: FunctionType, name: str) -> Callable[..., Any]:
    """Returns a function like ``step`` or ``reset`` of an environment.

    Only the outermost call is a span, and only steps are counted. A step of one argument is timed without a further
    call, because it is the most frequent one.
    """
    is_step = name == "step"
    if _takes_two(fn.__code__):

        def call(env: Any, action: Any) -> Any:
            if clock.env_depth or get_ident() != clock.thread:
                return fn(env, action)
            clock.env_depth = 1
            if clock.at_next_span is not None:
                clock.announce(env_account)
            clock.note((perf_counter_ns(), env_account))
            try:
                return fn(env, action)
            finally:
                if is_step and clock.env_id != id(env):
                    clock.select_env(env)
                clock.note((perf_counter_ns(), clock.env_entry if is_step else None))
                clock.env_depth = 0
                if is_step and clock.marks is not None:
                    clock.mark_env_step(clock.marks)

        # A caller may pass the action by its name.
        call.__code__ = call.__code__.replace(co_varnames=fn.__code__.co_varnames[:2])
        call.__defaults__ = fn.__defaults__
        return like(fn, call)

    def call_with_any(*args: Any, **kwargs: Any) -> Any:
        if clock.env_depth or get_ident() != clock.thread:
            return fn(*args, **kwargs)
        clock.env_depth = 1
        clock.enter(env_account)
        try:
            return fn(*args, **kwargs)
        finally:
            if is_step and clock.env_id != id(args[0]):
                clock.select_env(args[0])
            clock.note((perf_counter_ns(), clock.env_entry if is_step else None))
            clock.env_depth = 0
            if is_step and clock.marks is not None:
                clock.mark_env_step(clock.marks)

    return like(fn, call_with_any)


def _takes_two(code: CodeType) -> bool:
    """Returns whether a method takes one argument, by position or by name, whose name no other variable has."""
    free = {"clock", "env_account", "fn", "get_ident", "is_step", "perf_counter_ns"}
    return (
        code.co_argcount == 2
        and not (code.co_posonlyargcount or code.co_kwonlyargcount or code.co_flags & VARIABLE_ARGUMENTS)
        and not free.intersection(code.co_varnames[:2])
    )
