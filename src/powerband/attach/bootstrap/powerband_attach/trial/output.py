"""Output: makes only one of several calls that log, print or save."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

from powerband_attach.profile.call_sites import user_place
from powerband_attach.trial import settings
from powerband_attach.trial.replace import replace

LOGGERS = {
    "torch.utils.tensorboard.writer": "SummaryWriter",
    "tensorboardX.writer": "SummaryWriter",
}
METHODS = (
    "add_scalar add_scalars add_histogram add_image add_images add_figure add_video add_text add_tensor flush"
).split()
FUNCTIONS = {
    "wandb.sdk.wandb_run": ("Run.log",),
    "mlflow.tracking.fluent": ("log_metric", "log_metrics", "log_artifact"),
}
SAVES = {"torch.serialization": "save", "safetensors.torch": "save_file"}


def install() -> None:
    """Replaces the functions if the change is ``log_every``, ``save_every`` or ``print_every``."""
    every = settings.change("log_every")
    if every is not None:
        for module, cls in LOGGERS.items():
            for function in METHODS:
                replace(
                    module,
                    cls + "." + function,
                    functools.partial(_thinned, name="log_every", every=every, tagged=True),
                )
        for module, names in FUNCTIONS.items():
            for function in names:
                replace(module, function, functools.partial(_thinned, name="log_every", every=every))
    every = settings.change("save_every")
    if every is not None:
        for module, function in SAVES.items():
            replace(module, function, functools.partial(_thinned, name="save_every", every=every))
    every = settings.change("print_every")
    if every is not None:
        builtins.print = _thinned(print, "print_every", every)


def _thinned(original: Callable[..., Any], name: str, every: int, tagged: bool = False) -> Callable[..., Any]:
    """Returns a function that makes the first of `every` calls from a line of the user's code.

    Args:
        original: The function.
        name: Name of the change.
        every: Calls per call that is made.
        tagged: Whether the second argument is a tag; each tag has a count of its own.
    """
    counts: dict[tuple[str, Any], int] = {}

    @functools.wraps(original)
    def thinned(*args: Any, **kwargs: Any) -> Any:
        settings.made(name)
        tag = args[1] if tagged and len(args) > 1 and isinstance(args[1], str) else kwargs.get("tag", "")
        key = (user_place(), tag)
        count = counts[key] = counts.get(key, 0) + 1
        return original(*args, **kwargs) if count % every == 1 or every == 1 else None

    return thinned
