"""Loaders: changes arguments of torch's ``DataLoader``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from powerband_attach.trial import settings
from powerband_attach.trial.replace import bound, replace

NAMES = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")


def install() -> None:
    """Replaces the constructor if the change is one of `NAMES`."""
    values = {name: settings.change(name) for name in NAMES if settings.change(name) is not None}
    if values:
        replace("torch.utils.data.dataloader", "DataLoader.__init__", lambda original: _changed(original, values))


def _changed(original: Callable[..., Any], values: dict[str, Any]) -> Callable[..., Any]:
    def changed(*args: Any, **kwargs: Any) -> Any:
        if not settings.here():
            return original(*args, **kwargs)
        for name in values:
            settings.made(name)
        arguments = {**bound(original, args, kwargs), **values}
        if arguments.get("num_workers") == 0:
            arguments.update(prefetch_factor=None, persistent_workers=False, timeout=0)
        return original(**arguments)

    return changed
