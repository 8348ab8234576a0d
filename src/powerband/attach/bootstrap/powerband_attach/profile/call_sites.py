"""Call sites: the user's lines that create loaders, vector environments, optimisers and loggers, or set threads.

`powerband profile --try` changes these calls, and prints the changed line.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from powerband_attach import record
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely
from powerband_attach.user_code import is_user_file

CALLS = {
    "torch.utils.data.dataloader": ("DataLoader.__init__",),
    "torch.optim.optimizer": ("Optimizer.__init__",),
    "torch": ("set_num_threads",),
    "gymnasium.vector.sync_vector_env": ("SyncVectorEnv.__init__",),
    "gymnasium.vector.async_vector_env": ("AsyncVectorEnv.__init__",),
    "gymnasium.envs.registration": ("make_vec",),
    "torch.utils.tensorboard.writer": ("SummaryWriter.__init__",),
    "tensorboardX.writer": ("SummaryWriter.__init__",),
    "wandb.sdk.wandb_init": ("init",),
    "mlflow.tracking.fluent": ("start_run",),
}
"""Module -> functions; a method has its class in front."""
MOST = 100
"""Largest number of recorded calls."""

_seen: set[tuple[str, str]] = set()
_places: Any = WeakKeyDictionary()
"""Loader -> place of its construction."""


def watch() -> None:
    """Wraps the functions when their modules are imported."""
    for name, paths in CALLS.items():
        when_imported(name, functools.partial(_wrap, paths=paths))


def place_of(loader: Any) -> str:
    """Returns the place at which a loader was created; "" if it is unknown."""
    return _places.get(loader, "")


def user_place() -> str:
    """Returns ``path:line`` of the innermost frame of the user's code; "" without one."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{os.path.abspath(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def _wrap(module: Any, paths: tuple[str, ...]) -> None:
    for path in paths:
        holder: Any = module
        *parents, name = path.split(".")
        for parent in parents:
            holder = getattr(holder, parent, None)
        original = getattr(holder, name, None)
        if original is not None:
            setattr(holder, name, _recorded(original, path.replace(".__init__", "")))


def _recorded(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        safely(_note)(what, args)
        return original(*args, **kwargs)

    return recorded


def _note(what: str, args: tuple[Any, ...]) -> None:
    place = user_place()
    if what == "DataLoader":
        _places[args[0]] = place
    name = type(args[0]).__name__ if what in ("DataLoader", "Optimizer") else what
    if place and (name, place) not in _seen and len(_seen) < MOST:
        _seen.add((name, place))
        value = args[0] if what == "set_num_threads" and args else None
        defaults = args[2] if what == "Optimizer" and len(args) > 2 and isinstance(args[2], dict) else {}
        switches = {key: defaults[key] for key in ("foreach", "fused") if key in defaults}
        record.write("call_site", what=what, name=name, where=place, value=value, switches=switches)
