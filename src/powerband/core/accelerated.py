"""AdamW through Accelerate: how ranks share a network's gradients is its setting, not the code's that trains.

Reinforcement learning averages one flat gradient (`core.flat`). Plugins that shard weights are refused: averaged
weights and checkpoints here hold whole ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from powerband.core.distributed import Ranks
from powerband.core.flags import ConfigError
from powerband.core.precision import Precision


class AcceleratedAdam:
    """AdamW on one module, with clipping, as Accelerate prepares both.

    Attributes:
        net: The module itself: its parameters are what is trained and saved.
        accelerator: Accelerate's; it has joined the process group that is there.
    """

    def __init__(
        self,
        net: nn.Module,
        lr: float,
        *,
        ranks: Ranks,
        precision: Precision,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
    ) -> None:
        """
        Args:
            net: On its final device.
            lr: Learning rate, above 0.
            ranks: This process among the others.
            precision: Of what `forward` computes; parameters and moments stay float32.
            weight_decay: Share of lr by which parameters shrink each step.
            betas: Decay rates of the two moments.
            eps: Added to the root of the second moment.
            max_grad_norm: Largest 2-norm of the gradient; None does not clip.

        Raises:
            ConfigError: Accelerate is not installed, or was told to shard the weights.
        """
        for plugin in ("FSDP", "DEEPSPEED"):
            if os.environ.get(f"ACCELERATE_USE_{plugin}", "false").lower() in ("true", "1"):
                raise ConfigError(
                    f"accelerate was configured for {plugin}, which shards weights; averaged weights and checkpoints "
                    f"here hold whole ones. Choose multi-GPU without it (accelerate config), or powerband train --gpus."
                )
        try:
            from accelerate import Accelerator
            from accelerate.state import AcceleratorState
        except ImportError:
            raise ConfigError(
                "This trains through Accelerate. Install it: pip install 'powerband[diffusion]'"
            ) from None
        AcceleratorState._reset_state(True)  # a search trains in several precisions in one process; it knows one
        mixed = {"fp32": "no"}.get(precision.name, precision.name)
        self.net, self.ranks, self.max_grad_norm = net, ranks, max_grad_norm
        self.accelerator = Accelerator(mixed_precision=mixed, cpu=ranks.device.type == "cpu")
        adam = torch.optim.AdamW(net.parameters(), lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.prepared, self.adam = self.accelerator.prepare(net, adam)

    @property
    def lr(self) -> float:
        """Learning rate; settable."""
        return self.adam.param_groups[0]["lr"]

    @lr.setter
    def lr(self, lr: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = float(lr)

    def forward(self, *inputs: Any) -> Any:
        """What the module gives, with gradients that `step` averages over ranks."""
        net = self.prepared if self.ranks.world_size > 1 else self.accelerator.unwrap_model(self.prepared)
        with self.accelerator.autocast():
            return net(*inputs)

    @contextmanager
    def part(self, last: bool) -> Iterator[None]:
        """Inside, `forward` and `step` see one of several parts of a batch, whose gradients add up.

        Args:
            last: Only then are gradients averaged over ranks, and only then does `step` move the weights.
        """
        self.accelerator.sync_gradients = last
        try:
            with nullcontext() if last else self.accelerator.no_sync(self.prepared):
                yield
        finally:
            self.accelerator.sync_gradients = True

    def step(self, loss: Tensor) -> Tensor:
        """Steps down the gradient of `loss` (0-d).

        Returns:
            0-d: 2-norm of the gradient (mean over ranks) before clipping; 0 of a `part` that is not the last.
        """
        self.accelerator.backward(loss)
        if not self.accelerator.sync_gradients:
            return torch.zeros_like(loss)
        limit = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        norm = self.accelerator.clip_grad_norm_(self.net.parameters(), limit)
        self.adam.step()
        self.adam.zero_grad()
        return torch.as_tensor(norm if norm is not None else 0.0, device=loss.device).detach()  # DeepSpeed's is a float

    def state_dict(self) -> dict:
        """Moments and steps by number of the parameter."""
        return {str(number): dict(state) for number, state in self.adam.state_dict()["state"].items()}

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict`; the rate stays the configuration's."""
        groups = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict(
            {"state": {int(number): dict(of) for number, of in state.items()}, "param_groups": groups}
        )
