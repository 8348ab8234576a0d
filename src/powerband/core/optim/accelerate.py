"""AdamW through Accelerate: the launcher's configuration decides how ranks share a network's gradients and weights.

Supported are DDP, FSDP 2, which shards weights, gradients and moments (`fsdp.py`), and DeepSpeed ZeRO (`deepspeed.py`).
FSDP 1 is refused. Reinforcement learning averages one flat gradient instead (`flat_adam.py`).
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
from powerband.core.optim.factored_adam import FactoredAdam
from powerband.core.optim.fsdp import full_tensor, gather_full_tensors, local_shards, shard_like
from powerband.core.optim.precision import Precision
from powerband.core.optim.torch_private import is_compiled
from powerband.core.ranks.ranks import Ranks

FIX = (
    "Shard with FSDP 2 (accelerate launch --use_fsdp --fsdp_version 2), or train without sharding (accelerate launch "
    "--multi_gpu, or powerband train --gpus)."
)
YES = ("true", "1")
SCALER = "scaler"
"""Entry of a state with the loss scale; all others are numbers of parameters."""


class AcceleratedAdam:
    """AdamW on one module with gradient clipping, distributed over ranks by Hugging Face Accelerate.

    Attributes:
        net: The module whose parameters are trained and saved.
        accelerator: Accelerate's `Accelerator`, which uses the existing process group.
        sharded: "weights" if weights and Adam moments are divided among the ranks (FSDP 2), "moments" if only the
            moments are (ZeRO), or "" without sharding.
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
        factored: bool = False,
        allow_sharding: bool = False,
    ) -> None:
        """
        Args:
            net: Module on its final device.
            lr: Learning rate, above 0.
            ranks: Process group, with the rank and device of this process.
            precision: Precision of `forward`; parameters and moments stay float32.
            weight_decay: Decoupled weight decay, as in `torch.optim.AdamW`.
            betas: Decay rates of the two moments.
            eps: Constant added to the root of the second moment.
            max_grad_norm: Largest 2-norm of the gradient; None disables clipping.
            factored: Use `FactoredAdam`, which ignores `betas` and `eps` and supports no sharding.
            allow_sharding: True if the caller supports sharding: it calls `gather` before a checkpoint, and computes
                moving averages of the weights from full weights.

        Raises:
            ConfigError: Accelerate is not installed, or its configuration is unsupported.
        """
        try:
            from accelerate.state import AcceleratorState
        except ImportError:
            raise ConfigError(
                "This recipe trains through Accelerate, which is not installed. Run pip install 'powerband[diffusion]'."
            ) from None
        refuse_sharding(allow_sharding)
        if factored and launcher_sharding():
            raise ConfigError(
                f"accelerate is configured for {launcher_sharding()}, but the factored optimiser cannot be sharded. "
                f"Write rdt.optimizer=adamw, or use accelerate launch --multi_gpu."
            )
        AcceleratorState._reset_state(True)  # it allows one precision per process, but a search tries several
        self.net, self.ranks, self.max_grad_norm = net, ranks, max_grad_norm
        self.accelerator = self._accelerator(precision)
        self.sharded = "weights" if self.accelerator.is_fsdp2 else ""
        self._world_size = ranks.world_size
        self._gathered: dict[str, Any] | None = None
        adam: torch.optim.Optimizer
        if factored:
            adam = FactoredAdam(net.parameters(), lr, weight_decay)
        else:
            fused = ranks.device.type == "cuda"  # one pass over the memory of weights, gradients and moments
            adam = torch.optim.AdamW(
                net.parameters(), lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused or None
            )
        self.prepared, self.adam = self.accelerator.prepare(net, adam)

    def _accelerator(self, precision: Precision) -> Any:
        """A new `Accelerator`, with FSDP if the launcher is configured for it."""
        from accelerate import Accelerator

        use_device(self.ranks.device)
        plugin = _fsdp_plugin(self.net) if launcher_sharding() else None
        mixed = {"fp32": "no"}.get(precision.name, precision.name)
        accelerator = Accelerator(mixed_precision=mixed, cpu=self.ranks.device.type == "cpu", fsdp_plugin=plugin)
        if plugin is not None:
            _enable_fsdp_on_cpus(accelerator, plugin)
        return accelerator

    @property
    def lr(self) -> float:
        """Learning rate; settable."""
        return self.adam.param_groups[0]["lr"]

    @lr.setter
    def lr(self, lr: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = float(lr)

    def forward(self, *inputs: Any) -> Any:
        """Computes the output of the module in the configured precision. `step` averages its gradients over ranks.

        Raises:
            ConfigError: The module or its moments are sharded, and this rank works alone after it ran out of memory
                (`Ranks.without_collectives`). One rank alone cannot measure which batch fits.
        """
        if self.sharded and self.ranks.world_size < self._world_size:
            raise ConfigError(
                f"Rank {self.ranks.rank} ran out of memory. With sharded {self.sharded}, no trial can find the largest "
                f"batch that fits. Halve offline.global_batch_size, or double rdt.gradient_accumulation_steps."
            )
        net = self.prepared if self.ranks.world_size > 1 else self.accelerator.unwrap_model(self.prepared)
        with self.accelerator.autocast():
            return net(*inputs)

    @contextmanager
    def accumulation_step(self, last: bool) -> Iterator[None]:
        """Inside the context, `forward` and `step` process one of several parts of a batch. The gradients add up.

        Args:
            last: True for the last part. Only then gradients are averaged over ranks and `step` updates the weights.
        """
        self.accelerator.sync_gradients = last
        try:
            with nullcontext() if last else self.accelerator.no_sync(self.prepared):
                yield
        finally:
            self.accelerator.sync_gradients = True

    def step(self, loss: Tensor) -> Tensor:
        """Takes one optimiser step on `loss` (0-d).

        Returns:
            2-norm (0-d) of the gradient averaged over ranks, before clipping; 0 inside `accumulation_step` for a part
            of the batch that is not the last.
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
        """Gathers sharded weights and moments on rank 0, for a checkpoint. All ranks must call it.

        On rank 0 the next call of `weights`, and the next call of `state_dict`, then return full tensors. Without
        sharding this does nothing.
        """
        if self.sharded:
            state = gather_full_tensors({"net": self.net.state_dict(), "adam": self._moments()}, self.ranks.leads)
            self._gathered = state or None

    def weights(self) -> dict[str, Tensor]:
        """Returns the state dict of the module: name -> tensor.

        If the weights are sharded, only the first call on rank 0 after `gather` returns full tensors. All other calls
        return the shards of this rank.
        """
        return self._pop_gathered("net") or local_shards(self.net.state_dict())

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """Loads the complete, unsharded weights that `weights` returned. Every rank must pass the same `state`."""
        current = self.net.state_dict()
        self.net.load_state_dict(
            {name: shard_like(full, current[name]) if name in current else full for name, full in state.items()}
        )

    def state_dict(self) -> dict:
        """State of Adam: index of a parameter, as text -> its moments and step count; with fp16 also ``scaler``.

        If the moments are sharded, only the first call on rank 0 after `gather` returns full tensors. All other calls
        return the shards of this rank.
        """
        state = self._pop_gathered("adam") or local_shards(self._moments())
        scaler = self.accelerator.scaler
        return state if scaler is None else {**state, SCALER: scaler.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Restores a full, unsharded `state_dict`. Every rank must pass the same `state`.

        The learning rate is not restored.
        """
        scaler, state = state.get(SCALER), {name: each for name, each in state.items() if name != SCALER}
        if scaler and self.accelerator.scaler is not None:  # checkpoints of earlier versions do not contain it
            self.accelerator.scaler.load_state_dict(scaler)
        groups = self.adam.state_dict()["param_groups"]
        likes = dict(enumerate(self.net.parameters()))
        moments = {
            int(number): {
                name: shard_like(full, likes[int(number)]) if full.dim() else full for name, full in tensors.items()
            }
            for number, tensors in state.items()
        }
        self.adam.load_state_dict({"state": moments, "param_groups": groups})

    def _moments(self) -> dict:
        return {str(number): dict(state) for number, state in self.adam.state_dict()["state"].items()}

    def _pop_gathered(self, name: str) -> dict | None:
        """Result `name` of the last `gather`, returned once, because updates make it outdated; None without one."""
        return None if self._gathered is None else self._gathered.pop(name, None)


def launcher_sharding() -> str:
    """The sharding that ``accelerate launch`` configured: "FSDP", "DeepSpeed", or "" for none."""
    known = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed"}
    return next((name for key, name in known.items() if os.environ.get(f"ACCELERATE_USE_{key}", "").lower() in YES), "")


def refuse_sharding(allow_sharding: bool) -> None:
    """Raises ConfigError if ``accelerate launch`` configured sharding and `allow_sharding` is False."""
    if launcher_sharding() and not allow_sharding:
        raise ConfigError(
            f"accelerate is configured for {launcher_sharding()}, which shards the network. This algorithm does not "
            "support it. Use accelerate launch --multi_gpu, or powerband train --gpus."
        )


def _fsdp_plugin(net: nn.Module) -> Any:
    """Accelerate's plugin for FSDP as the launcher configured it.

    Raises:
        ConfigError: FSDP 1 is configured, or a setting is unsupported because it could change the training.
    """
    if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        raise ConfigError(f"accelerate is configured for FSDP {version}, but only FSDP 2 is supported. {FIX}")
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    # Shards are stored and gathered in float32 and autocast computes, so the training is the same as without shards.
    plugin = FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecisionPolicy())
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # no caller modifies outputs in place
    plugin.cpu_ram_efficient_loading = False  # the launcher enables it; it shards buffers too, which ranks need in full
    for bad, setting, fix in (
        (isinstance(plugin.cpu_offload, CPUOffloadPolicy), "fsdp_offload_params", "Leave out --fsdp_offload_params."),
        (plugin.activation_checkpointing, "fsdp_activation_checkpointing", "Write rdt.gradient_checkpointing=true."),
        (plugin.ignored_modules, "fsdp_ignored_modules", "Remove it: gradients of ignored modules are not averaged."),
        (is_compiled(net), "A compiled network with FSDP", "Write rdt.compile=false."),
    ):
        if bad:
            raise ConfigError(f"{setting} is not supported. {fix}")
    return plugin


def _enable_fsdp_on_cpus(accelerator: Any, plugin: Any) -> None:
    """Enables FSDP on CPU ranks, which otherwise silently keep full weights: Accelerate enables it on GPUs only."""
    from accelerate import DistributedType

    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin


def use_device(device: torch.device) -> None:
    """Lets Accelerate use the GPU of this rank, such as one of ``gpus=2,3``. By itself it takes that of the local rank.

    A CPU rank and a rank whose GPU has the number of its local rank need nothing.
    """
    from accelerate.state import PartialState

    if device.type != "cuda" or device.index is None:
        return
    state = PartialState()
    if state.device != device:
        state.device, state.local_process_index = device, device.index
        torch.cuda.set_device(device)
