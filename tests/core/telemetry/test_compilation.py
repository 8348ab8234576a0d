"""Compilation by numba or torch.compile within a loop is excluded from its clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from numba import njit

from powerband.core.telemetry.compilation import compiled_s, exclude_compilation, running_time
from powerband.core.telemetry.phase_clock import PhaseClock


def new_function() -> Callable[[float], float]:
    """Returns a function that numba has not compiled, and that calls another one."""

    @njit
    def inner(x):
        return x * 2.0 + 1.0

    @njit
    def outer(x):
        total = 0.0
        for k in range(10):
            total += inner(x + k)
        return total

    return outer


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_compilation_within_a_span_belongs_to_no_account() -> None:
    clock, function = PhaseClock(), new_function()
    exclude_compilation(clock)
    clock.restart()
    compiled, began = compiled_s(), running_time()
    with clock("env"):
        first_s = timed(lambda: function(1.0))
    own_s, times = compiled_s() - compiled, clock.read()
    assert 0.5 * first_s < own_s <= first_s
    assert abs(times.wall_s - (first_s - own_s)) < 0.05 * first_s
    assert abs(sum(times.host.values()) - times.wall_s) < 1e-3
    assert times.worst_s["env"] < first_s - 0.9 * own_s
    assert times.cpu_s < 0.5 * first_s and times.thread_s < 0.5 * first_s
    assert abs(running_time() - began - times.wall_s) < 0.05


def test_a_compiled_function_counts_as_before() -> None:
    clock, function = PhaseClock(), new_function()
    function(1.0)
    exclude_compilation(clock)
    compiled = compiled_s()
    with clock("env"):
        function(2.0)
        time.sleep(0.05)
    assert compiled_s() == compiled and clock.read().host["env"] >= 0.05


def test_compilation_on_another_thread_is_not_excluded() -> None:
    clock, function = PhaseClock(), new_function()
    exclude_compilation(clock)
    compiled = compiled_s()
    thread = threading.Thread(target=function, args=(1.0,))
    with clock("env"):
        thread.start()
        thread.join()
    assert compiled_s() == compiled


def test_a_clock_that_no_longer_exists_is_not_kept() -> None:
    exclude_compilation(PhaseClock())
    compiled = compiled_s()
    new_function()(1.0)
    assert compiled_s() > compiled


def test_compilation_by_torch_is_excluded_too() -> None:
    clock, function = PhaseClock(), torch.compile(lambda x: x.sin() + x.cos(), backend="eager")
    exclude_compilation(clock)
    clock.restart()
    compiled = compiled_s()
    with clock("update"):
        first_s = timed(lambda: function(torch.ones(3)))
    own_s = compiled_s() - compiled
    assert 0 < own_s <= first_s and abs(clock.read().host["update"] - (first_s - own_s)) < 0.01
    with clock("update"):
        function(torch.zeros(3))
    assert compiled_s() - compiled == own_s
