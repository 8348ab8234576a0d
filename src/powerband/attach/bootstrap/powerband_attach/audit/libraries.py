"""Libraries: records arguments with which the script calls libraries, such as those of a DataLoader.

An option that only reaches such an argument works, even if a short run shows no other difference.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from powerband_attach.audit import facts
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely

CALLS = {
    "torch": ("compile", "set_num_threads", "set_num_interop_threads", "manual_seed", "set_default_dtype"),
    "torch.utils.data.dataloader": ("DataLoader.__init__",),
    "torch.distributed.distributed_c10d": ("init_process_group",),
    "torch.nn.parallel.distributed": ("DistributedDataParallel.__init__",),
    "torch.nn.utils.clip_grad": ("clip_grad_norm_", "clip_grad_value_"),
    "torch.amp.grad_scaler": ("GradScaler.__init__",),
    "torch.amp.autocast_mode": ("autocast.__init__",),
    "torch.profiler.profiler": ("profile.__init__",),
    "gymnasium.envs.registration": ("make", "make_vec"),
    "gymnasium.vector.async_vector_env": ("AsyncVectorEnv.__init__",),
    "multiprocessing.pool": ("Pool.__init__",),
    "concurrent.futures.thread": ("ThreadPoolExecutor.__init__",),
    "concurrent.futures.process": ("ProcessPoolExecutor.__init__",),
    "tensorboard.summary.writer.event_file_writer": ("EventFileWriter.__init__",),
    "wandb": ("init",),
    "mlflow": ("log_param", "set_experiment"),
}
"""Module -> functions whose simple arguments are recorded. A method has its class in front."""
MOST = 40


def install() -> None:
    """Wraps the functions when their modules are imported."""
    for name, paths in CALLS.items():
        when_imported(name, functools.partial(_wrap, paths=paths))


def _wrap(module: Any, paths: tuple[str, ...]) -> None:
    for path in paths:
        holder: Any = module
        *parents, name = path.split(".")
        for parent in parents:
            holder = getattr(holder, parent, None)
        original = getattr(holder, name, None)
        if original is not None:
            setattr(holder, name, _recorded(original, path.replace(".__init__", "")))


def _recorded(original: Any, path: str) -> Any:
    try:
        signature: Any = inspect.signature(original)
    except ValueError:  # a function of C code
        signature = inspect.signature(lambda *args, **kwargs: None)

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        safely(_note)(signature, path, args, kwargs)
        return original(*args, **kwargs)

    return recorded


def _note(signature: Any, path: str, args: Any, kwargs: Any) -> None:
    bound = signature.bind(*args, **kwargs)
    simple = {
        key: value
        for key, value in _flat(bound.arguments).items()
        if isinstance(value, (bool, int, float, str)) and key != "self"
    }
    calls = facts.values.setdefault("calls", {})
    entry = "{}({})".format(path, ", ".join("{}={!r}".format(*item) for item in sorted(simple.items())))
    if len(calls) < MOST or entry in calls:
        calls[entry] = True


def _flat(arguments: Any) -> dict[str, Any]:
    """Returns arguments by name, those of ``*args`` by position."""
    positional = {str(index): value for index, value in enumerate(arguments.get("args", ()))}
    return {**arguments, **positional, **arguments.get("kwargs", {})}
