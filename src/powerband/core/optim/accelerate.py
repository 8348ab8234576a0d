"""AdamW through Accelerate: how ranks share a network's gradients is its setting, not the code's that trains.

Reinforcement learning averages one flat gradient (`core.flat`). FSDP 2 shards weights, gradients and moments
(`core.sharded`); with DeepSpeed `core.zero` has its own; FSDP 1 is refused.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.core.optim.fsdp import full_tensor, gather_full_tensors, local_shards, shard_like
from powerband.core.optim.precision import Precision
from powerband.core.ranks.ranks import Ranks

FIX = (
    "Shard with FSDP 2 (accelerate launch --use_fsdp --fsdp_version 2), or not at all (accelerate launch --multi_gpu, "
    "or powerband train --gpus)."
)
YES = ("true", "1")


class AcceleratedAdam:
    """AdamW on one module, with clipping, as Accelerate prepares both.

    Attributes:
        net: The module itself: its parameters are what is trained and saved.
        accelerator: Accelerate's; it has joined the process group that is there.
        sharded: What lies in shards on the ranks: "weights" and moments (FSDP 2), "moments" (ZeRO), "" nothing.
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
        allow_sharding: bool = False,
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
            allow_sharding: Whoever trains calls `gather` before a checkpoint, and makes averaged weights of whole ones.

        Raises:
            ConfigError: Accelerate is not installed, or was told to shard the weights in a way that is not known here.
        """
        try:
            from accelerate.state import AcceleratorState
        except ImportError:
            raise ConfigError(
                "This trains through Accelerate. Install it: pip install 'powerband[diffusion]'"
            ) from None
        refuse_sharding(allow_sharding)
        AcceleratorState._reset_state(True)  # a search trains in several precisions in one process; it knows one
        self.net, self.ranks, self.max_grad_norm = net, ranks, max_grad_norm
        self.accelerator = self._accelerator(precision)
        self.sharded = "weights" if self.accelerator.is_fsdp2 else ""
        self._world_size = ranks.world_size
        self._gathered: dict[str, Any] | None = None
        adam = torch.optim.AdamW(net.parameters(), lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.prepared, self.adam = self.accelerator.prepare(net, adam)

    def _accelerator(self, precision: Precision) -> Any:
        """Accelerate's, with FSDP where the launcher was configured for it."""
        from accelerate import Accelerator

        plugin = _plugin(self.net) if launcher_sharding() else None
        mixed = {"fp32": "no"}.get(precision.name, precision.name)
        made = Accelerator(mixed_precision=mixed, cpu=self.ranks.device.type == "cpu", fsdp_plugin=plugin)
        if plugin is not None:
            _shard_on_cpus(made, plugin)
        return made

    @property
    def lr(self) -> float:
        """Learning rate; settable."""
        return self.adam.param_groups[0]["lr"]

    @lr.setter
    def lr(self, lr: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = float(lr)

    def forward(self, *inputs: Any) -> Any:
        """What the module gives, with gradients that `step` averages over ranks.

        Raises:
            ConfigError: Something lies in shards, and this rank tries something by itself (memory ran out).
        """
        if self.sharded and self.ranks.world_size < self._world_size:
            raise ConfigError(
                f"rank {self.ranks.rank} ran out of memory. What fits cannot be tried where {self.sharded} lie in "
                f"shards: take half the batch, or more parts of it (rdt.gradient_accumulation_steps)."
            )
        net = self.prepared if self.ranks.world_size > 1 else self.accelerator.unwrap_model(self.prepared)
        with self.accelerator.autocast():
            return net(*inputs)

    @contextmanager
    def accumulation_step(self, last: bool) -> Iterator[None]:
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
        return full_tensor(norm).detach()

    def gather(self) -> None:
        """Makes the next `weights` and `state_dict` of the leading rank whole. A collective, where there are shards."""
        if self.sharded:
            state = gather_full_tensors({"net": self.net.state_dict(), "adam": self._moments()}, self.ranks.leads)
            self._gathered = state or None

    def weights(self) -> dict[str, Tensor]:
        """State of the module; where it lies in shards, whole once after `gather`, else what this rank holds."""
        return self._taken("net") or local_shards(self.net.state_dict())

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """Restores whole `weights`, which all ranks have."""
        now = self.net.state_dict()
        self.net.load_state_dict({k: shard_like(full, now[k]) if k in now else full for k, full in state.items()})

    def state_dict(self) -> dict:
        """Moments and steps by number of the parameter, whole or not as `weights` are."""
        return self._taken("adam") or local_shards(self._moments())

    def load_state_dict(self, state: dict) -> None:
        """Restores a whole `state_dict`, which all ranks have; the rate stays the configuration's."""
        groups = self.adam.state_dict()["param_groups"]
        likes = dict(enumerate(self.net.parameters()))
        moments = {
            int(number): {
                name: shard_like(full, likes[int(number)]) if full.dim() else full for name, full in of.items()
            }
            for number, of in state.items()
        }
        self.adam.load_state_dict({"state": moments, "param_groups": groups})

    def _moments(self) -> dict:
        return {str(number): dict(state) for number, state in self.adam.state_dict()["state"].items()}

    def _taken(self, name: str) -> dict | None:
        """What `gather` made, once: it is of that moment."""
        return None if self._gathered is None else self._gathered.pop(name, None)


def launcher_sharding() -> str:
    """FSDP or DeepSpeed, as the launcher was configured; "" for neither."""
    known = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed"}
    return next((said for n, said in known.items() if os.environ.get(f"ACCELERATE_USE_{n}", "").lower() in YES), "")


def refuse_sharding(allow_sharding: bool) -> None:
    """Refuses a launcher's wish to shard a network that is not to be."""
    if launcher_sharding() and not allow_sharding:
        raise ConfigError(
            f"accelerate is configured for {launcher_sharding()}, which shards the network; this algorithm does not "
            "support it. Write accelerate launch --multi_gpu, or powerband train --gpus."
        )


def _plugin(net: nn.Module) -> Any:
    """Accelerate's plugin for FSDP as the launcher configured it.

    Raises:
        ConfigError: FSDP 1, or a setting that is not known to leave the training what it is.
    """
    if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        raise ConfigError(
            f"accelerate was configured for FSDP {version}, which shards weights; only FSDP 2 works. {FIX}"
        )
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    # Shards stay and are gathered in float32, and autocast computes, as without shards: the training is the same one.
    plugin = FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecisionPolicy())
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # nobody changes what comes out in place
    plugin.cpu_ram_efficient_loading = False  # the launcher's default; it shards buffers too, and every rank has all
    for bad, setting, fix in (
        (isinstance(plugin.cpu_offload, CPUOffloadPolicy), "fsdp_offload_params", "Leave it out."),
        (plugin.activation_checkpointing, "fsdp_activation_checkpointing", "Write rdt.gradient_checkpointing=true."),
        (plugin.ignored_modules, "fsdp_ignored_modules", "Leave it out: nobody would average their gradients."),
        (net._compiled_call_impl is not None, "compile beside FSDP", "Write rdt.compile=false."),
    ):
        if bad:
            raise ConfigError(f"{setting} is not supported. {fix}")
    return plugin


def _shard_on_cpus(accelerator: Any, plugin: Any) -> None:
    """Accelerate hears of FSDP on accelerators only; CPU ranks would keep whole weights and not say so."""
    from accelerate import DistributedType

    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
