"""Flat Adam: an optimiser for modules whose parameters share one contiguous tensor, with few kernel launches per step.

The parameters of the modules become views of one tensor, and their gradients become views of another. Autograd
accumulates into the gradient views. All-reduce, norm, clipping, Adam and Polyak averaging then each use one tensor,
whatever the number of layers. `module.state_dict()` and `module.load_state_dict()` still work: both copy in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from powerband.core.optim.compile import compile_if
from powerband.core.optim.precision import Precision
from powerband.core.optim.torch_private import fused_adam_, scaler_tensors

ALIGNMENT = 16
"""Every parameter starts at a multiple of this number of elements: a cache line and a vector register in float32."""
FLUSH_BELOW, FLUSH_INTERVAL = 1e-35, 32
"""On CPUs, `FusedAdam` sets moments below FLUSH_BELOW to 0, once per FLUSH_INTERVAL steps."""


def flatten(modules: Sequence[nn.Module]) -> tuple[Tensor, list[nn.Parameter]]:
    """Moves the parameters of `modules` into one tensor (P,) and makes them views of it.

    P counts all parameters and the gaps between them: alignment leaves gaps of zeros. The gradient of a gap is zero,
    so Adam does not change it.

    Returns:
        The flat tensor (P,), and the parameters in order without duplicates.

    Raises:
        ValueError: The modules have no parameters, or parameters of several dtypes or devices.
    """
    parameters = list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if len(kinds) != 1:
        found = ", ".join(f"{dtype} on {device}" for dtype, device in kinds) or "no parameters"
        raise ValueError(
            f"Flat parameters need one dtype and one device; the modules have {found}. Move them with .to() first."
        )
    ((dtype, device),) = kinds
    starts = [0]
    for parameter in parameters:
        starts.append(starts[-1] + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT)
    flat = torch.zeros(starts[-1], dtype=dtype, device=device)
    for parameter, start in zip(parameters, starts[:-1], strict=True):
        view = flat[start : start + parameter.numel()].view(parameter.shape)
        view.copy_(parameter.detach())
        parameter.data = view
    return flat, parameters


def views_of(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Returns one view of the tensor `flat` (P,) per parameter, with the shape of the parameter.

    The P entries of `flat` are ordered as in `flatten`: each parameter is followed by a gap that aligns the next one.
    """
    views, start = [], 0
    for parameter in parameters:
        views.append(flat[start : start + parameter.numel()].view(parameter.shape))
        start += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
    return views


class FusedAdam:
    """Adam on one tensor with torch's fused operator; compatible with `torch.amp.GradScaler`.

    `torch.optim.Adam` runs the same operator. But its constructor imports torch's compiler, which takes over a second
    at the start of each rank, and half the time of its step is overhead around the operator.

    The moments of an inactive unit shrink below 1e-38. A CPU computes with such denormal numbers a hundred times as
    slowly. After 300,000 steps of a Meta-World expert a third of the moments were denormal, and its two optimisers took
    3.1 ms per update instead of 0.14 (`benchmarks/updates/denormals.py`). `step` therefore sets small moments to 0;
    they change a weight by less than 1e-30.

    Attributes:
        state: ``step`` (0-d), ``exp_avg`` and ``exp_avg_sq`` (P,) for P parameters. All exist from the start,
            because CUDA graphs and resumed runs need them.

    Args:
        flat: The tensor (P,) to optimise; `step` reads its ``grad``.
        lr: Learning rate; a 0-d tensor on CUDA, so that captured graphs read its current value.
        betas: Decay rates of the two moments.
        eps: Constant added to the root of the second moment.
        weight_decay: Decoupled weight decay, times the learning rate per step.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        flat: nn.Parameter,
        lr: float | Tensor,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ):
        self.param_groups = [{"params": [flat]}]
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.state = {
            "step": torch.zeros((), device=flat.device),
            "exp_avg": torch.zeros_like(flat.data),
            "exp_avg_sq": torch.zeros_like(flat.data),
        }

    @torch.no_grad()
    def step(self) -> None:
        """Updates the parameters, unless the loss scaler found a gradient that is not finite."""
        (flat,) = self.param_groups[0]["params"]
        step = self.state["step"]
        found_inf = getattr(
            self, "found_inf", None
        )  # the scaler sets found_inf and grad_scale for the duration of a step
        step += 1
        if self.weight_decay:
            decay = self.lr * self.weight_decay
            flat.mul_(1 - (decay if found_inf is None else decay * (1 - found_inf.squeeze())))
        fused_adam_(
            [flat.data],
            [flat.grad],
            [self.state["exp_avg"]],
            [self.state["exp_avg_sq"]],
            [],
            [step],
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=found_inf,
        )
        if found_inf is not None:
            step -= found_inf.squeeze()
        if not flat.is_cuda and int(step) % FLUSH_INTERVAL == 0:
            for moment in (self.state["exp_avg"], self.state["exp_avg_sq"]):
                moment.masked_fill_(moment.abs() < FLUSH_BELOW, 0.0)


def join_(flat: Tensor, parts: Sequence[Tensor]) -> None:
    """Copies tensors into `flat` (P,) in the order of `flatten`, with zeros in the gaps, for torch.compile."""
    rows = [part.reshape(-1) for part in parts]
    flat.copy_(torch.cat([nn.functional.pad(row, (0, -len(row) % ALIGNMENT)) for row in rows]))


def clipped_adam_(
    flat: Tensor,
    grad: Tensor,
    state: dict[str, Tensor],
    lr: Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    max_norm: float | None,
) -> Tensor:
    """Takes the step of `FusedAdam` with clipping, as one function for torch.compile; `grad` keeps its values.

    Args:
        flat: Parameters (P,), changed in place.
        grad: Gradient (P,).
        state: ``step``, ``exp_avg`` and ``exp_avg_sq`` of `FusedAdam`, changed in place.
        lr: Learning rate, 0-d.
        betas: Decay rates of the two moments.
        eps: Constant added to the root of the second moment.
        weight_decay: Decoupled weight decay, times the learning rate per step.
        max_norm: Largest 2-norm of the gradient; None disables clipping.

    Returns:
        2-norm (0-d) of the gradient before clipping.
    """
    norm = torch.linalg.vector_norm(grad)
    if max_norm is not None:
        grad = grad * (max_norm / (norm + 1e-6)).clamp(max=1.0)
    step = state["step"].add_(1)
    if weight_decay:
        flat.mul_(1 - lr * weight_decay)
    mean = state["exp_avg"].lerp_(grad, 1 - betas[0])
    square = state["exp_avg_sq"].mul_(betas[1]).add_((1 - betas[1]) * grad * grad)
    root = square.sqrt() / (1 - betas[1] ** step).sqrt() + eps
    flat.sub_(lr / (1 - betas[0] ** step) * mean / root)
    return norm


class FlatAdam:
    """Adam over all parameters of `modules` as one tensor, with clipping, loss scaling and averaging over ranks.

    Attributes:
        flat: (P,) all parameters of the modules, P numbers with the gaps that `flatten` leaves for alignment.
        grad: (P,) their gradients.
        initial_lr: Learning rate at the construction.

    Source: Kingma and Ba 2015, algorithm 1.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        lr: float,
        *,
        precision: Precision,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        average: Callable[[Tensor], object] | None = None,
        compiled: bool = False,
    ):
        """
        Args:
            modules: Modules to train, on their final device.
            lr: Learning rate, above 0.
            precision: Decides if gradients need loss scaling (fp16 on CUDA).
            betas: Decay rates of the two moments.
            eps: Constant added to the root of the second moment.
            weight_decay: Decoupled weight decay (AdamW, Loshchilov and Hutter 2019), times the learning rate per step.
            max_grad_norm: Largest 2-norm of the gradient over all parameters; None disables clipping.
            average: Function that replaces a flat gradient by its mean over ranks, in place; None averages nothing.
            compiled: On CUDA without loss scaling, join the gradients, clip and step in compiled functions.

        Raises:
            ValueError: lr or max_grad_norm is not above 0, or the parameters differ in dtype or device.
        """
        if lr <= 0 or (max_grad_norm is not None and max_grad_norm <= 0):
            raise ValueError(
                f"lr={lr} and max_grad_norm={max_grad_norm} must both be above 0. max_grad_norm=None disables clipping."
            )
        values, self.parameters = flatten(modules)
        self.flat = nn.Parameter(values)
        self.grad = self.flat.grad = torch.zeros_like(values)
        for parameter, view in zip(self.parameters, views_of(self.grad, self.parameters), strict=True):
            parameter.grad = view
        self.initial_lr, self.max_grad_norm = lr, max_grad_norm
        self.average = average
        self.scaler = precision.scaler()
        if self.scaler is not None:
            self.scaler.scale(values.new_zeros(()))  # creates its tensors, which `state_dict` returns
        # On CUDA the rate is a tensor, so that a captured graph reads the current value at each replay.
        rate = torch.tensor(lr, device=values.device) if values.is_cuda else lr
        self.adam = FusedAdam(self.flat, rate, betas, eps, weight_decay)
        compiled = compiled and values.is_cuda and self.scaler is None
        self._join_fn = compile_if(join_, True) if compiled else None
        self._clipped_adam_fn = compile_if(clipped_adam_, True) if compiled else None

    @property
    def lr(self) -> float | Tensor:
        """Learning rate; a 0-d tensor on CUDA."""
        return self.adam.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        if isinstance(self.adam.lr, Tensor):
            self.adam.lr.fill_(lr)
        else:
            self.adam.lr = float(lr)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside the context, gradients flow through the modules to their inputs; weight gradients are not computed."""
        for parameter in self.parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self.parameters:
                parameter.requires_grad_(True)

    def step(self, loss: Tensor) -> Tensor:
        """Takes one optimiser step on `loss` (0-d), without host-device synchronisation.

        Returns:
            2-norm (0-d) of the gradient averaged over ranks, before clipping.
        """
        if self._join_fn is None:
            self.grad.zero_()
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        else:  # one kernel instead of one per parameter
            self._join_fn(self.grad, torch.autograd.grad(loss, self.parameters, materialize_grads=True))
        return self.apply()

    @torch.no_grad()
    def apply(self) -> Tensor:
        """Takes one optimiser step on the gradient already stored in `grad`, for gradients computed without autograd.

        Returns:
            2-norm (0-d) of the gradient averaged over ranks, before clipping.
        """
        optimizer: Any = self.adam  # the scaler is typed for optimisers of torch
        if self.average is not None:
            self.average(self.grad)
        if self._clipped_adam_fn is not None:
            adam = self.adam
            rest = adam.lr, adam.betas, adam.eps, adam.weight_decay, self.max_grad_norm
            return self._clipped_adam_fn(self.flat.data, self.grad, adam.state, *rest)
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        norm = torch.linalg.vector_norm(self.grad)
        if self.max_grad_norm is not None:
            self.grad.mul_((self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        if self.scaler is None:
            self.adam.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
        return norm

    def state_dict(self) -> dict:
        """State of the optimiser as live tensors, not copies. The modules' state dicts hold the weights.

        Returns:
            ``step``, ``exp_avg``, ``exp_avg_sq`` and ``lr``; with loss scaling (fp16) also ``scaler``.
        """
        state: dict[str, Any] = {**self.adam.state, "lr": self.lr}
        if self.scaler is not None:
            state["scaler"] = {**self.scaler.state_dict(), **scaler_tensors(self.scaler)}
        return state

    def load_state_dict(self, state: dict) -> None:
        """Restores a `state_dict`. Its tensors are copied in place, so that captured CUDA graphs stay valid.

        The learning rate is not restored, because a resume may set another one. A loop that anneals the rate sets it at
        each iteration.

        Raises:
            ValueError: The shapes of `state` do not fit the modules.
        """
        for key, tensor in self.adam.state.items():
            if tensor.shape != state[key].shape:
                raise ValueError(
                    f"The optimiser state {key} has {state[key].numel()} elements, but these networks need "
                    f"{tensor.numel()}. Resume with the configuration of the checkpoint."
                )
            tensor.copy_(state[key])
        if self.scaler is not None and "scaler" in state:
            saved = state["scaler"].items()  # earlier versions saved numbers in place of tensors
            self.scaler.load_state_dict(
                {name: each.item() if isinstance(each, Tensor) else each for name, each in saved}
            )


class FlatTarget:
    """Target networks that follow online networks: ``target += tau (online - target)``, in one kernel launch.

    Source: Lillicrap et al. 2016, algorithm 1.
    """

    def __init__(self, online: FlatAdam, target: Sequence[nn.Module], tau: float):
        """
        Args:
            online: Optimiser of the online modules.
            target: Copies of these modules, in the same order; their parameters stop requiring gradients.
            tau: Weight of the online parameters at each update, in (0, 1].

        Raises:
            ValueError: tau is out of range, or the shapes differ.
        """
        if not 0 < tau <= 1:
            raise ValueError(f"tau={tau} is outside (0, 1]. A usual value is 0.005; 1 copies the online networks.")
        self.flat, parameters = flatten(target)
        if [p.shape for p in parameters] != [p.shape for p in online.parameters]:
            raise ValueError(
                "The target networks differ from the online networks. Pass copies of them, in the same order."
            )
        for parameter in parameters:
            parameter.requires_grad_(False)
        self.online = online.flat.detach()
        self.tau = tau

    def update(self) -> None:
        """Moves the target networks towards the online ones, in place."""
        self.flat.lerp_(self.online, self.tau)
