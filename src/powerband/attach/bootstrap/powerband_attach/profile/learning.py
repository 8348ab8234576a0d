"""Learning: times optimiser steps, backward passes, collectives and checkpoints of torch.

No hook of a module and no dispatch mode is used: they would make small networks slower by half and more.
"""

from __future__ import annotations

import sys
from threading import get_ident
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from powerband_attach import record
from powerband_attach.imports import when_imported
from powerband_attach.profile.clock import clock
from powerband_attach.profile.timed import is_timed, timed
from powerband_attach.profile.update_probe import update_probe
from powerband_attach.safely import safely

COLLECTIVES = (
    "all_reduce all_gather all_gather_into_tensor all_gather_object broadcast barrier reduce reduce_scatter "
    "reduce_scatter_tensor all_to_all gather scatter broadcast_object_list monitored_barrier"
).split()
"""Functions of ``torch.distributed``, which copies them from its module ``distributed_c10d`` after that import."""


def watch() -> None:
    """Times the functions of torch when it is imported."""
    when_imported("torch.optim.optimizer", _add_optimizer_hooks)
    when_imported("torch", _time_functions)
    when_imported("torch.distributed.distributed_c10d", _time_collectives)
    when_imported("torch._dynamo.trace_rules", _skip_own_frames)


def _skip_own_frames(module: ModuleType) -> None:
    """Keeps functions of this package out of compiled code, whose guards would watch values that change all the time.

    A compiled function may call an optimiser or ``backward``, whose hooks and wrappers are frames of this package.
    """
    module.add("powerband_attach")


def _add_optimizer_hooks(module: ModuleType) -> None:
    module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_after_step)


RECORD_AFTER = 4
"""Number of steps of an optimiser before spans are recorded for the timeline."""


_optimizer = clock.account("optimizer")


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    if get_ident() == clock.thread:
        if clock.optimizer_open:  # the last step ended with an error, so no hook has closed its span
            clock.leave()
        clock.optimizer_open = True
        if clock.at_next_span is not None:
            clock.announce(_optimizer)
        clock.note((perf_counter_ns(), _optimizer))
        if update_probe.asked:
            return update_probe.marked_closure(args, kwargs)
    return None


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if clock.optimizer_open and get_ident() == clock.thread:
        clock.optimizer_open = False
        clock.note((perf_counter_ns(), None))
        key = id(optimizer)
        steps = clock.optimizers[key] = clock.optimizers.get(key, 0) + 1
        if clock.marks is not None:
            clock.mark(clock.marks)
        if steps == 1:
            _describe(optimizer)
        if steps == RECORD_AFTER:
            clock.record_spans()
        if update_probe.asked:
            update_probe.after_step()


@safely
def _describe(optimizer: Any) -> None:
    """Records what the first step of an optimiser shows: its parameters, and the threads of torch."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    record.write(
        "optimizer",
        name=type(optimizer).__name__,
        parameters=sum(each.numel() for each in parameters),
        dtype=str(parameters[0].dtype).replace("torch.", ""),
        device=str(parameters[0].device),
        threads=sys.modules["torch"].get_num_threads(),
    )


def _replace(owner: Any, name: str, account: str) -> Any:
    fn = getattr(owner, name, None)
    if callable(fn) and not is_timed(fn):
        setattr(owner, name, timed(fn, account))
    return getattr(owner, name, None)


def _time_functions(torch: Any) -> None:
    _replace(torch.autograd, "backward", "backward")
    torch.save = _replace(torch.serialization, "save", "save")


def _time_collectives(module: Any) -> None:
    for name in COLLECTIVES:
        _replace(module, name, "collectives")
