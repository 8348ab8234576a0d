"""Optimisers: the implementation of a step in torch, ``foreach`` or ``fused``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from powerband_attach.trial import settings
from powerband_attach.trial.replace import replace


def install() -> None:
    """Changes the defaults of all optimisers that have the implementation, if the change is ``optimizer``."""
    name = settings.change("optimizer")
    if name is not None:
        replace("torch.optim.optimizer", "Optimizer.__init__", lambda original: _changed(original, name))


def _changed(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    def changed(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        if name in defaults:
            settings.made("optimizer")
            defaults.update(implementation(name))
        original(self, params, defaults)

    return changed


def implementation(name: str) -> dict[str, Any]:
    """Returns the entries of a parameter group for an implementation; "" is the default one."""
    return {"foreach": name == "foreach" or None, "fused": name == "fused" or None}
