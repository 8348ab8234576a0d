"""Flat parameters: several modules share one contiguous tensor, so that a step is a handful of launches.

The parameters of the modules become views of one tensor and their gradients views of another. Autograd accumulates into
the gradient views, after which the all-reduce, the norm, the clip, Adam and Polyak averaging each touch one tensor,
whatever the number of layers. `module.state_dict()` and `module.load_state_dict()` work as before (both copy in place).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from powerband.core.optim.precision import Precision

ALIGNMENT = 16
"""Every parameter starts at a multiple of this many elements: in float32 a cache line, and a vector register."""
TINY, TIDY_EVERY = 1e-35, 32
"""On CPUs, moments of Adam below TINY become 0 at each of so many steps: see `FusedAdam`."""


def flatten(modules: Sequence[nn.Module]) -> tuple[Tensor, list[nn.Parameter]]:
    """Moves the parameters of `modules` into one tensor (P,), of which they become views.

    The gaps that alignment leaves hold zeros and stay zero: their gradient is zero, so Adam does not move them.

    Returns:
        The flat tensor and the parameters, in order, each once.

    Raises:
        ValueError: The modules have no parameters, or parameters of several dtypes or devices.
    """
    parameters = list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if len(kinds) != 1:
        found = ", ".join(f"{dtype} on {device}" for dtype, device in kinds) or "no parameters"
        raise ValueError(
            f"flat parameters need one dtype and one device, found {found}; move the modules with .to() first."
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
    """Views of `flat` (P,) with the shapes of `parameters`, laid out as `flatten` does."""
    views, start = [], 0
    for parameter in parameters:
        views.append(flat[start : start + parameter.numel()].view(parameter.shape))
        start += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
    return views


class FusedAdam:
    """Adam on one tensor by torch's fused operator, with what `torch.amp.GradScaler` asks of an optimiser.

    `torch.optim.Adam` runs the same operator: making one imports torch's compiler, over a second of each start of each
    rank, and a step spends as long around the operator as in it.

    The moments of a unit that no longer fires shrink below 1e-38, where a CPU computes a hundred times as slowly: after
    300,000 steps of an expert of Meta-World a third of them were there, and its two optimisers took 3.1 ms an update
    instead of 0.14 (`benchmarks/denormals.py`). They become 0 before: such moments move a weight by less than 1e-30.

    Attributes:
        state: ``step`` (), ``exp_avg``, ``exp_avg_sq`` (P,): there from the start, before a capture or a resume.
    """

    _step_supports_amp_scaling = True

    def __init__(self, flat: nn.Parameter, lr: float | Tensor, betas: tuple[float, float], eps: float):
        self.param_groups = [{"params": [flat]}]
        self.lr, self.betas, self.eps = lr, betas, eps
        self.state = {
            "step": torch.zeros((), device=flat.device),
            "exp_avg": torch.zeros_like(flat.data),
            "exp_avg_sq": torch.zeros_like(flat.data),
        }

    @torch.no_grad()
    def step(self) -> None:
        """Moves the parameters, unless the scaler found a gradient that is not finite."""
        (flat,) = self.param_groups[0]["params"]
        step = self.state["step"]
        found_inf = getattr(self, "found_inf", None)  # the scaler sets it and grad_scale around a step
        step += 1
        torch._fused_adam_(
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
        if not flat.is_cuda and int(step) % TIDY_EVERY == 0:
            for moment in (self.state["exp_avg"], self.state["exp_avg_sq"]):
                moment.masked_fill_(moment.abs() < TINY, 0.0)


class FlatAdam:
    """Adam over all parameters of `modules` as one tensor, with clipping, loss scaling and the average over ranks.

    Attributes:
        flat: (P,) all parameters.
        grad: (P,) all gradients.

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
        max_grad_norm: float | None = None,
        average: Callable[[Tensor], object] | None = None,
    ):
        """
        Args:
            modules: Owners of the parameters, on their final device.
            lr: Learning rate, above 0.
            precision: Says whether gradients need loss scaling (fp16 on CUDA).
            betas: Decay rates of the two moments.
            eps: Added to the root of the second moment.
            max_grad_norm: Largest 2-norm of the gradient over all parameters; None does not clip.
            average: Replaces a flat gradient by its mean over ranks, in place.

        Raises:
            ValueError: lr or max_grad_norm is not above 0, or the parameters differ in dtype or device.
        """
        if lr <= 0 or (max_grad_norm is not None and max_grad_norm <= 0):
            raise ValueError(
                f"lr={lr} and max_grad_norm={max_grad_norm} must be above 0; max_grad_norm=None does not clip."
            )
        values, self.parameters = flatten(modules)
        self.flat = nn.Parameter(values)
        self.grad = self.flat.grad = torch.zeros_like(values)
        for parameter, view in zip(self.parameters, views_of(self.grad, self.parameters), strict=True):
            parameter.grad = view
        self.max_grad_norm = max_grad_norm
        self.average = average
        self.scaler = precision.scaler()
        # On CUDA the rate is a tensor: a captured graph reads it anew at each replay.
        rate = torch.tensor(lr, device=values.device) if values.is_cuda else lr
        self.adam = FusedAdam(self.flat, rate, betas, eps)

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
        """Inside, gradients flow through the modules to their inputs, and no weight gradient is computed."""
        for parameter in self.parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self.parameters:
                parameter.requires_grad_(True)

    def step(self, loss: Tensor) -> Tensor:
        """Steps down the gradient of `loss` (0-d). No host synchronisation.

        Returns:
            0-d: 2-norm of the gradient (mean over ranks) before clipping.
        """
        self.grad.zero_()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.average is not None:
            self.average(self.grad)
        if self.scaler is not None:
            self.scaler.unscale_(self.adam)
        norm = torch.linalg.vector_norm(self.grad)
        if self.max_grad_norm is not None:
            self.grad.mul_((self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        if self.scaler is None:
            self.adam.step()
        else:
            self.scaler.step(self.adam)
            self.scaler.update()
        return norm

    def state_dict(self) -> dict:
        """Moments, step and rate (live tensors, not copies); the parameters are in their modules' state dicts."""
        state = {**self.adam.state, "lr": self.lr}
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict) -> None:
        """Copies `state` in place, so that captured graphs stay valid; the rate stays the configuration's.

        A resume may be told another rate; where a loop anneals it, it sets the rate anew at each iteration.
        """
        for key, tensor in self.adam.state.items():
            if tensor.shape != state[key].shape:
                raise ValueError(
                    f"optimiser state {key} has {state[key].numel()} elements, these networks need {tensor.numel()}; "
                    f"resume with the configuration the checkpoint was written with."
                )
            tensor.copy_(state[key])
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])


class FlatTarget:
    """Target networks that follow online ones: ``target += tau (online - target)``, one launch.

    Source: Lillicrap et al. 2016, algorithm 1.
    """

    def __init__(self, online: FlatAdam, target: Sequence[nn.Module], tau: float):
        """
        Args:
            online: Optimiser of the online modules.
            target: Copies of these modules, in the same order; their parameters stop requiring gradients.
            tau: Share of the online parameters taken over at each update, in (0, 1].

        Raises:
            ValueError: tau is out of range, or the shapes differ.
        """
        if not 0 < tau <= 1:
            raise ValueError(f"tau={tau} is outside (0, 1]; 0.005 is usual, 1 copies the online networks.")
        self.flat, parameters = flatten(target)
        if [p.shape for p in parameters] != [p.shape for p in online.parameters]:
            raise ValueError("target networks must have the parameters of the online ones, in the same order.")
        for parameter in parameters:
            parameter.requires_grad_(False)
        self.online = online.flat.detach()
        self.tau = tau

    def update(self) -> None:
        """Moves the target networks towards the online ones, in place."""
        self.flat.lerp_(self.online, self.tau)
