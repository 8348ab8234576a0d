"""Precision and compilation: bfloat16 autocast, TF32, cuDNN's benchmark, and ``torch.compile``.

Autocast surrounds the outermost call of a network while gradients are recorded, as a script would write it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from powerband_attach.imports import when_imported
from powerband_attach.safely import safely
from powerband_attach.trial import settings
from powerband_attach.trial.replace import replace

_open: list[Any] = []
_watched: list[Any] = []
"""Networks whose call has not returned, with autocast and before compilation."""
_outermost: dict[int, Any] = {}
autocast: list[bool] = [False]
"""Whether autocast is on; `probe` changes it."""


def install() -> None:
    """Makes the change if it is ``autocast``, ``tf32``, ``cudnn_benchmark`` or ``compile``."""
    probed = [name for each in settings.get("probe", []) for name in each]
    if settings.change("autocast") is not None or "autocast" in probed:
        autocast[0] = settings.change("autocast") is not None
        replace("torch.nn.modules.module", "Module._wrapped_call_impl", _autocast)
        when_imported("torch.nn.modules.module", _call_again)
    if settings.change("tf32") is not None:
        when_imported("torch", _use_tf32)
    if settings.change("cudnn_benchmark") is not None:
        when_imported("torch", _use_cudnn_benchmark)
    if settings.change("compile") is not None:
        when_imported("torch.nn.modules.module", _watch_networks)


def set_tf32(torch: Any, on: bool) -> None:
    """Switches TF32 of matrix products and convolutions on or off."""
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def _use_tf32(torch: Any) -> None:
    settings.made("tf32")
    set_tf32(torch, True)


def _use_cudnn_benchmark(torch: Any) -> None:
    settings.made("cudnn_benchmark")
    torch.backends.cudnn.benchmark = True


def _call_again(module: Any) -> None:
    """``__call__`` is a second name of the replaced method."""
    module.Module.__call__ = module.Module._wrapped_call_impl


def _autocast(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if _open or not autocast[0] or not torch.is_grad_enabled():
            return original(self, *args, **kwargs)
        _open.append(self)
        try:
            settings.made("autocast")
            kind = next((each.device.type for each in self.parameters()), "cpu")
            with torch.autocast(kind, dtype=torch.bfloat16):
                return original(self, *args, **kwargs)
        finally:
            _open.pop()

    return call


def _watch_networks(module: Any) -> None:
    """Compiles the outermost networks with gradients after the first step of an optimiser, in place."""
    handles = [
        module.register_module_forward_pre_hook(_before_call),
        module.register_module_forward_hook(_after_call),
    ]

    def add(optimizer: Any) -> None:
        handles.append(optimizer.register_optimizer_step_post_hook(_compile_once(handles)))

    when_imported("torch.optim.optimizer", add)


def _before_call(network: Any, args: Any) -> None:
    if not _watched:
        _outermost[id(network)] = network
    _watched.append(network)


def _after_call(network: Any, args: Any, output: Any) -> None:
    if network in _watched:  # an error has left networks open
        del _watched[_watched.index(network) :]


def _compile_once(handles: list[Any]) -> Callable[..., None]:
    @safely
    def compile_networks(optimizer: Any, args: Any, kwargs: Any) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()
        for network in _outermost.values():
            if any(parameter.grad is not None for parameter in network.parameters()):
                settings.made("compile")
                network.compile()
        _outermost.clear()
        _watched.clear()

    return compile_networks
