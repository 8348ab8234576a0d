"""Private interfaces of PyTorch: this file contains every use of them in powerband.

The public optimisers and averages launch one kernel per tensor or allocate their results. The functions below compute
the same results on lists of tensors in place. `tests/core/optim/test_torch_private.py` lists the tested versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

CPU_ATTENTION: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
    ),
}
"""FLOP formulas of fused attention on a CPU, which PyTorch's FLOP counter counts as zero."""

fused_adam_: Callable[..., None] = torch._fused_adam_
"""One Adam step of a list of parameters in one kernel, without host-device synchronisation."""


def scaler_tensors(scaler: torch.amp.GradScaler) -> dict[str, Tensor]:
    """Returns the loss scale and its growth tracker, which a CUDA graph changes, with their names in its state.

    They exist from the first scaled loss on.
    """
    named = {"scale": scaler._scale, "_growth_tracker": scaler._growth_tracker}
    return {name: each for name, each in named.items() if each is not None}


def lerp_all_(targets: list[Tensor], sources: list[Tensor], weight: float) -> None:
    """Interpolates each target towards its source by the factor `weight`, in place."""
    torch._foreach_lerp_(targets, sources, weight)


def kernel_intervals_ns(profiler: torch.profiler.profile) -> list[tuple[int, int]]:
    """Returns the first and last nanosecond, in Unix time, of each kernel and copy that a finished profiler recorded.

    `torch.profiler.profile.events` builds an object with statistics for each of them, which takes seconds for 100,000.
    """
    cuda = torch.autograd.DeviceType.CUDA
    finished: Any = profiler.profiler
    events = [each for each in finished.kineto_results.events() if each.device_type() == cuda]
    return [(each.start_ns(), each.start_ns() + each.duration_ns()) for each in events]


def listen_to_compilation(starts: Callable[[Any], None], ends: Callable[[Any], None]) -> None:
    """From now on, calls `starts` before and `ends` after each compilation by `torch.compile`, with one argument."""
    from torch._dynamo.callback import callback_handler

    callback_handler.register_start_callback(starts)
    callback_handler.register_end_callback(ends)


def is_compiled(net: nn.Module) -> bool:
    """True if ``compile()`` was called on the network or on a part of it."""
    return any(module._compiled_call_impl is not None for module in net.modules())
