"""AdamW with its moments in shards on the ranks: DeepSpeed's ZeRO 1 and 2, through Accelerate. Weights stay whole.

A rank keeps the moments, and a copy of the weights that it steps, of one part of all weights laid end to end; at stage
2 the gradients too. A checkpoint holds moments by weight, as without shards. ZeRO 3 is refused: FSDP 2 does that.
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
from powerband.core.ranks.ranks import Ranks

MOMENTS = ("exp_avg", "exp_avg_sq")
STAGES = (1, 2)
UNSUPPORTED_VARIABLES = (
    "DEEPSPEED_CONFIG_FILE",
    "GRADIENT_ACCUMULATION_STEPS",
    "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "DEEPSPEED_OFFLOAD_PARAM_DEVICE",
)
"""What the launcher may say and is not taken over."""


def adam_for_launcher(net: nn.Module, lr: float, **words: Any) -> AcceleratedAdam:
    """AdamW as the launcher was configured: plain, or with what is shared out as it says.

    Args:
        net, lr, words: As `AcceleratedAdam` has them; whoever trains may shard.
    """
    kind = ZeroAdam if launcher_sharding() == "DeepSpeed" else AcceleratedAdam
    return kind(net, lr, allow_sharding=True, **words)


class ZeroAdam(AcceleratedAdam):
    """AdamW whose moments lie in shards; `gather` makes them whole for a checkpoint."""

    def __init__(self, net: nn.Module, lr: float, **words: Any) -> None:
        super().__init__(net, lr, **words)
        self.sharded = "moments"
        self._weights = list(net.parameters())
        self._last = True

    def _accelerator(self, precision: Precision) -> Any:
        plugin = plugin_of(self.net, self.ranks, precision, self.max_grad_norm)
        import deepspeed.ops
        from accelerate import Accelerator

        # Gloo averages between CPU ranks. DeepSpeed would compile a collective of its own for them, for a minute.
        if self.ranks.device.type == "cpu":
            deepspeed.ops.__compatible_ops__ = {}

        self._compute_in(precision)
        # On CPUs DeepSpeed is looked for where nobody asks for them.
        return Accelerator(mixed_precision="no", deepspeed_plugin=plugin)

    def _compute_in(self, precision: Precision) -> None:
        """Autocast within the module's own forward: DeepSpeed turns off one that is entered around it."""
        plain = self.net.forward

        def forward(*inputs: Any) -> Any:
            with precision.autocast():
                return plain(*inputs)

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

        state, found = list(self._flat.state.values()), {}
        for number, weight in enumerate(self._weights if state else ()):
            whole = {name: safe_get_full_optimizer_state(weight, name) for name in MOMENTS}  # a collective
            if self.ranks.leads:
                moments = {name: full.cpu() for name, full in whole.items()}
                found[str(number)] = {"step": state[0]["step"], **moments}
        self._gathered = {"adam": found} if self.ranks.leads else None

    def load_weights(self, state: dict[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        super().load_weights(state)
        for weight in self._weights:  # into the copies that are stepped
            safe_set_full_fp32_param(weight, weight.detach())

    def load_state_dict(self, state: dict) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        if not state and not self._flat.state:
            return
        step = next(iter(state.values()))["step"] if state else torch.zeros(())
        for group in self._flat.param_groups:  # of each one flat part, for which AdamW makes moments at its first step
            for flat in group["params"]:
                own = self._flat.state[flat]
                if not own:
                    own |= {name: torch.zeros_like(flat) for name in MOMENTS}
                own["step"] = step.clone()
        self.adam.optimizer._lazy_init_hp_params_optimizer_state()  # says where each weight's moments lie in these
        for number, weight in enumerate(self._weights):
            for name in MOMENTS:
                full = state[str(number)][name].to(weight.device) if state else torch.zeros_like(weight)
                safe_set_full_optimizer_state(weight, full, name)

    @property
    def _flat(self) -> torch.optim.Optimizer:
        """The AdamW inside of DeepSpeed's, of flat parts of the weights."""
        return self.adam.optimizer.optimizer

    def _moments(self) -> dict:
        return {str(number): dict(state) for number, state in enumerate(self._flat.state.values())}


def plugin_of(net: nn.Module, ranks: Ranks, precision: Precision, max_grad_norm: float | None) -> Any:
    """Accelerate's plugin for DeepSpeed as the launcher configured it.

    Raises:
        ConfigError: DeepSpeed is not installed, or a setting that is not known to leave the training what it is.
    """
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "accelerate was configured for DeepSpeed, which is not installed: pip install 'powerband[deepspeed]'."
        )
    said = {name: os.environ.get(f"ACCELERATE_{name}", "none").lower() for name in UNSUPPORTED_VARIABLES}
    stage = int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))
    file, parts, *offload = said.values()
    for bad, setting, fix in (
        (stage not in STAGES, f"zero_stage={stage}", "Write 1 or 2, or --use_fsdp --fsdp_version 2 for weights too."),
        (file != "none", "deepspeed_config_file", "Write --zero_stage 2 instead: sizes and rates are powerband's."),
        (offload != ["none", "none"], "offload_optimizer_device or offload_param_device", "Leave it out."),
        (parts not in ("none", "1"), "gradient_accumulation_steps", "Write rdt.gradient_accumulation_steps."),
        (precision.name == "fp16", "precision=fp16 beside DeepSpeed", "Write precision=bf16."),
        (net._compiled_call_impl is not None, "compile beside DeepSpeed", "Write rdt.compile=false."),
        (
            ranks.device.type == "cpu" and torch.cuda.is_available(),
            "DeepSpeed on CPU ranks beside a GPU",
            "Hide it: CUDA_VISIBLE_DEVICES= accelerate launch ...",
        ),
        (ranks.world_size == 1, "DeepSpeed with one rank", "It has nobody to share with: leave --use_deepspeed out."),
    ):  # fmt: skip
        if bad:
            raise ConfigError(f"{setting} is not supported. {fix}")
    from accelerate import DeepSpeedPlugin

    # Weights and what is averaged stay float32, and autocast computes, as without DeepSpeed: the training is the same.
    plugin = DeepSpeedPlugin(
        zero_stage=stage, gradient_accumulation_steps=1, gradient_clipping=float(max_grad_norm or 0.0)
    )
    plugin.deepspeed_config |= {"train_micro_batch_size_per_gpu": 1, "train_batch_size": ranks.world_size}  # no use
    return plugin
