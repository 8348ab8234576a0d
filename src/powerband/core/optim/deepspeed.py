"""AdamW with sharded moments: DeepSpeed's ZeRO stages 1 and 2, through Accelerate. Weights are not sharded.

All weights are concatenated and divided among the ranks. A rank keeps only the moments of its part, and a
copy of this part that the optimiser steps. At stage 2 it keeps only the gradients of this part too. Checkpoints store
moments by weight, as without sharding. ZeRO 3 is refused; use FSDP 2 to shard weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.core.optim.accelerate import AcceleratedAdam, launcher_sharding
from powerband.core.optim.precision import Precision
from powerband.core.optim.torch_private import is_compiled
from powerband.core.ranks.ranks import Ranks

MOMENTS = ("exp_avg", "exp_avg_sq")
STAGES = (1, 2)
UNSUPPORTED_VARIABLES = (
    "DEEPSPEED_CONFIG_FILE",
    "GRADIENT_ACCUMULATION_STEPS",
    "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "DEEPSPEED_OFFLOAD_PARAM_DEVICE",
)
"""Settings of the launcher that powerband does not support."""


def adam_for_launcher(net: nn.Module, lr: float, **options: Any) -> AcceleratedAdam:
    """Creates AdamW with the sharding that ``accelerate launch`` configured: DeepSpeed, FSDP 2 or none.

    Args:
        net: Module to train, on its final device.
        lr: Learning rate, above 0.
        **options: Other arguments of `AcceleratedAdam`.
    """
    adam_class = ZeroAdam if launcher_sharding() == "DeepSpeed" else AcceleratedAdam
    return adam_class(net, lr, allow_sharding=True, **options)


class ZeroAdam(AcceleratedAdam):
    """AdamW whose moments DeepSpeed divides among the ranks (ZeRO); `gather` collects them for a checkpoint.

    The arguments are those of `AcceleratedAdam`.
    """

    def __init__(self, net: nn.Module, lr: float, **options: Any) -> None:
        super().__init__(net, lr, **options)
        self.sharded = "moments"
        self._weights = list(net.parameters())
        self._last = True

    def _accelerator(self, precision: Precision) -> Any:
        place = int(os.environ.get("LOCAL_RANK", 0))
        if self.ranks.device.type == "cuda" and self.ranks.device.index not in (None, place):
            raise ConfigError(
                f"DeepSpeed uses the GPU with the number of the local rank, {place}, but gpus= gives this rank "
                f"{self.ranks.device}. Leave gpus out, and name the GPUs in CUDA_VISIBLE_DEVICES."
            )
        plugin = _deepspeed_plugin(self.net, self.ranks, precision, self.max_grad_norm)
        import deepspeed.ops
        from accelerate import Accelerator

        # Gloo averages between CPU ranks. Without this line DeepSpeed compiles its own collective for a minute.
        if self.ranks.device.type == "cpu":
            deepspeed.ops.__compatible_ops__ = {}

        self._compute_in(precision)
        # Without `cpu=True`, with which Accelerate ignores DeepSpeed.
        return Accelerator(mixed_precision="no", deepspeed_plugin=plugin)

    def _compute_in(self, precision: Precision) -> None:
        """Enters autocast inside the module's forward, because DeepSpeed disables an autocast around it."""
        forward_without_autocast = self.net.forward

        def forward(*inputs: Any) -> Any:
            with precision.autocast():
                return forward_without_autocast(*inputs)

        self.net.forward = forward

    @contextmanager
    def accumulation_step(self, last: bool) -> Iterator[None]:
        self._last = last
        try:
            yield
        finally:
            self._last = True

    def step(self, loss: Tensor) -> Tensor:
        engine = self.prepared
        engine.set_gradient_accumulation_boundary(is_boundary=self._last)
        engine.backward(loss)
        if not self._last:
            return torch.zeros_like(loss)
        engine.step()  # averages, clips and steps
        return torch.as_tensor(engine.get_global_grad_norm()).to(loss).detach()

    def gather(self) -> None:
        from deepspeed.utils import safe_get_full_optimizer_state

        state, gathered = list(self._flat.state.values()), {}
        for number, weight in enumerate(self._weights if state else ()):
            full_moments = {name: safe_get_full_optimizer_state(weight, name) for name in MOMENTS}  # a collective
            if self.ranks.leads:
                moments = {name: full.cpu() for name, full in full_moments.items()}
                gathered[str(number)] = {"step": state[0]["step"], **moments}
        self._gathered = {"adam": gathered} if self.ranks.leads else None

    def load_weights(self, state: dict[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        super().load_weights(state)
        for weight in self._weights:  # DeepSpeed steps copies of the weights
            safe_set_full_fp32_param(weight, weight.detach())

    def load_state_dict(self, state: dict) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        if not state and not self._flat.state:
            return
        step = next(iter(state.values()))["step"] if state else torch.zeros(())
        for group in self._flat.param_groups:  # AdamW would create the moments of a flat part at its first step
            for flat in group["params"]:
                own = self._flat.state[flat]
                if not own:
                    own |= {name: torch.zeros_like(flat) for name in MOMENTS}
                own["step"] = step.to(flat.device, torch.float32, copy=True)  # a fused AdamW needs it there
        self.adam.optimizer._lazy_init_hp_params_optimizer_state()  # maps each weight to its moments in the flat parts
        for number, weight in enumerate(self._weights):
            for name in MOMENTS:
                full = state[str(number)][name].to(weight.device) if state else torch.zeros_like(weight)
                safe_set_full_optimizer_state(weight, full, name)

    @property
    def _flat(self) -> torch.optim.Optimizer:
        """The AdamW inside DeepSpeed's optimiser, which steps flat parts of the weights."""
        return self.adam.optimizer.optimizer

    def _moments(self) -> dict:
        return {str(number): dict(state) for number, state in enumerate(self._flat.state.values())}


def _deepspeed_plugin(net: nn.Module, ranks: Ranks, precision: Precision, max_grad_norm: float | None) -> Any:
    """Accelerate's plugin for DeepSpeed as the launcher configured it.

    Raises:
        ConfigError: DeepSpeed is not installed, or a setting is unsupported because it could change the training.
    """
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "accelerate is configured for DeepSpeed, which is not installed. Run pip install 'powerband[deepspeed]'."
        )
    unsupported = {name: os.environ.get(f"ACCELERATE_{name}", "none").lower() for name in UNSUPPORTED_VARIABLES}
    stage = int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))
    file, parts, *offload = unsupported.values()
    for bad, setting, fix in (
        (stage not in STAGES, f"zero_stage={stage}", "Write --zero_stage 2, or --use_fsdp --fsdp_version 2 instead."),
        (file != "none", "deepspeed_config_file", "Write --zero_stage 2 instead; powerband sets sizes and rates."),
        (offload != ["none", "none"], "offload_optimizer_device or offload_param_device", "Leave both out."),
        (parts not in ("none", "1"), "gradient_accumulation_steps", "Write rdt.gradient_accumulation_steps=2 instead."),
        (precision.name == "fp16", "precision=fp16 with DeepSpeed", "Write precision=bf16."),
        (is_compiled(net), "A compiled network with DeepSpeed", "Write rdt.compile=false."),
        (
            ranks.device.type == "cpu" and torch.cuda.is_available(),
            "DeepSpeed on CPU ranks of a machine with a GPU",
            "Hide the GPU: CUDA_VISIBLE_DEVICES= accelerate launch ...",
        ),
        (ranks.world_size == 1, "DeepSpeed with one rank", "Add GPUs, or leave --use_deepspeed out."),
    ):  # fmt: skip
        if bad:
            raise ConfigError(f"{setting} is not supported. {fix}")
    from accelerate import DeepSpeedPlugin

    # Weights and averaged gradients stay float32 and autocast computes, as without DeepSpeed: the training is equal.
    plugin = DeepSpeedPlugin(
        zero_stage=stage, gradient_accumulation_steps=1, gradient_clipping=float(max_grad_norm or 0.0)
    )
    plugin.deepspeed_config |= {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": ranks.world_size,
    }  # required, unused
    return plugin
