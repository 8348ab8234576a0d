"""Optimisers: losses, gradients, parameters and settings of each optimiser step, and rows that reach the networks."""

from __future__ import annotations

import functools
from typing import Any

from powerband_attach.audit import facts
from powerband_attach.audit.runtime import environments
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely

MOST_STEPS = 2000
"""Steps whose losses and checksums are recorded."""
SAMPLE = 65536
"""Elements of a tensor that a checksum reads; a larger tensor is read at equal distances."""
LOOK_FORWARDS = 1024
"""Forward passes of layers between two searches for new environment classes. Early searches follow powers of two."""
_order: dict[int, int] = {}
_forwards = [0]


def install() -> None:
    """Registers global hooks of torch once it is imported."""
    when_imported("torch", safely(_hook))


def _hook(torch: Any) -> None:
    from torch.optim import optimizer

    optimizer.register_optimizer_step_pre_hook(lambda opt, args, kwargs: safely(_before)(torch, opt))
    optimizer.register_optimizer_step_post_hook(_after(torch))
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        safely(_loss)(torch, tensors)
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    torch.nn.modules.module.register_module_forward_pre_hook(lambda module, args: safely(_forward)(torch, module, args))


def _loss(torch: Any, tensors: Any) -> None:
    facts.count("backward")
    losses = facts.series.setdefault("loss", [])
    first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
    if first is not None and len(losses) < MOST_STEPS:
        losses.append(float(first.detach().double().sum()).hex())


def _before(torch: Any, opt: Any) -> None:
    index = str(_order.setdefault(id(opt), len(_order)))
    gradients = facts.series.setdefault("gradients", [])
    if len(gradients) < MOST_STEPS:
        gradients.append(_checksum(torch, [p.grad for p in _parameters(opt) if p.grad is not None]))
    facts.values.setdefault("groups", {})[index] = [
        {
            "class": type(opt).__name__,
            **{k: repr(v) for k, v in group.items() if k != "params"},
            "n": len(group["params"]),
        }
        for group in opt.param_groups
    ]
    facts.values.setdefault("first groups", {}).setdefault(index, facts.values["groups"][index])


def _after(torch: Any) -> Any:
    def after(opt: Any, args: Any, kwargs: Any) -> None:
        safely(_stepped)(torch, opt)
        facts.stop_if_due()

    return after


def _stepped(torch: Any, opt: Any) -> None:
    parameters = facts.series.setdefault("parameters", [])
    if len(parameters) < MOST_STEPS:
        parameters.append(_checksum(torch, _parameters(opt)))
    facts.event("u")
    name = f"updates of optimiser {_order[id(opt)]}"
    facts.counts[name] = facts.counts.get(name, 0) + 1
    values = facts.values
    values["torch threads"] = torch.get_num_threads()
    values["matmul precision"] = torch.get_float32_matmul_precision()
    values["cudnn.benchmark"] = bool(torch.backends.cudnn.benchmark)
    values["deterministic"] = bool(torch.are_deterministic_algorithms_enabled())
    values["anomaly"] = bool(torch.is_anomaly_enabled())
    facts.count("updates")


def _parameters(opt: Any) -> list[Any]:
    return [p for group in opt.param_groups for p in group["params"]]


def _checksum(torch: Any, tensors: list[Any]) -> str:
    """A sum in float64 over the elements, with a weight per tensor; equal values give equal text."""
    total = 0.0
    with torch.no_grad():
        for index, tensor in enumerate(tensors):
            flat = tensor.detach()
            if hasattr(flat, "to_local"):  # a DTensor of FSDP
                flat = flat.to_local()
            flat = flat.reshape(-1)
            if flat.numel() > SAMPLE:
                flat = flat[:: flat.numel() // SAMPLE]
            total += (index + 1) * float(flat.double().sum())
    return total.hex()


def _forward(torch: Any, module: Any, args: Any) -> None:
    if torch.compiler.is_compiling() or not isinstance(
        module, (torch.nn.Linear, torch.nn.Embedding, torch.nn.modules.conv._ConvNd, torch.nn.RNNBase)
    ):
        return
    _forwards[0] += 1
    if _forwards[0] % LOOK_FORWARDS == 0 or _forwards[0] & (_forwards[0] - 1) == 0:  # a class may appear at any time
        environments.watch_user_classes()
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor):
        return
    kind = first.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else next(module.parameters()).dtype
    grad = "learning" if torch.is_grad_enabled() else "acting"
    rows = facts.values.setdefault("rows", {})
    key = f"{grad} {first.shape[0] if first.dim() > 1 else 1}"
    rows[key] = rows.get(key, 0) + 1
    dtypes = facts.values.setdefault("dtypes", {})
    dtypes["{} on {}".format(str(dtype).replace("torch.", ""), kind)] = True
    training = facts.values.setdefault("modes", {})
    training["training" if module.training else "evaluation"] = True
