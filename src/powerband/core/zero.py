"""AdamW's moments in shards on the ranks: DeepSpeed's ZeRO 1 and 2, through Accelerate. Weights stay whole.

A rank keeps the moments, and a copy of the weights that it steps, of one part of all weights laid end to end; at stage
2 the gradients too. A checkpoint holds moments by weight, as without shards.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from powerband.core.distributed import Ranks
from powerband.core.flags import ConfigError
from powerband.core.precision import Precision

MOMENTS = ("exp_avg", "exp_avg_sq")
STAGES = (1, 2)
UNSAID = (
    "DEEPSPEED_CONFIG_FILE",
    "GRADIENT_ACCUMULATION_STEPS",
    "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "DEEPSPEED_OFFLOAD_PARAM_DEVICE",
)
"""What the launcher may say and is not taken over."""


def plugin_of(net: nn.Module, ranks: Ranks, precision: Precision, max_grad_norm: float | None) -> Any:
    """Accelerate's plugin for DeepSpeed as the launcher configured it.

    Raises:
        ConfigError: DeepSpeed is not installed, or a setting that is not known to leave the training what it is.
    """
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "accelerate was configured for DeepSpeed, which is not installed: pip install 'powerband[deepspeed]'."
        )
    said = {name: os.environ.get(f"ACCELERATE_{name}", "none").lower() for name in UNSAID}
    stage = int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))
    file, parts, *offload = said.values()
    for bad, setting, fix in (
        (stage not in STAGES, f"zero_stage={stage}", "Write 1 or 2, or --use_fsdp --fsdp_version 2 for weights too."),
        (file != "none", "deepspeed_config_file", "Write --zero_stage 2 instead: sizes and rates are powerband's."),
        (offload != ["none", "none"], "offload_optimizer_device or offload_param_device", "Leave it out."),
        (parts not in ("none", "1"), "gradient_accumulation_steps", "Write rdt.accumulation."),
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


def step(engine: Any, loss: Tensor, last: bool) -> Tensor:
    """Adds the gradient of `loss` (0-d), and after the `last` part of a batch averages, clips and steps.

    Returns:
        0-d: 2-norm of the gradient (mean over ranks) before clipping; 0 where it is not the last.
    """
    engine.set_gradient_accumulation_boundary(is_boundary=last)
    engine.backward(loss)
    if not last:
        return torch.zeros_like(loss)
    engine.step()
    return torch.as_tensor(engine.get_global_grad_norm()).to(loss).detach()


def held(optimizer: Any) -> dict:
    """What this rank holds of the moments, by number of the group."""
    return {str(number): dict(state) for number, state in enumerate(optimizer.optimizer.state.values())}


def moments(optimizer: Any, weights: list[Tensor], keep: bool) -> dict:
    """Whole moments and steps by number of the weight, on the CPU. A collective.

    Args:
        optimizer: DeepSpeed's.
        weights: All that it trains.
        keep: Else they are let go one by one and {} comes back.
    """
    from deepspeed.utils import safe_get_full_optimizer_state

    state = list(optimizer.optimizer.state.values())
    if not state:
        return {}
    found = {}
    for number, weight in enumerate(weights):
        whole = {name: safe_get_full_optimizer_state(weight, name) for name in MOMENTS}
        if keep:
            found[str(number)] = {"step": state[0]["step"], **{name: full.cpu() for name, full in whole.items()}}
    return found


def load_weights(weights: list[Tensor]) -> None:
    """Takes weights that were changed over into the copies that are stepped."""
    from deepspeed.utils import safe_set_full_fp32_param

    for weight in weights:
        safe_set_full_fp32_param(weight, weight.detach())


def load_moments(optimizer: Any, weights: list[Tensor], state: dict) -> None:
    """Restores whole `moments`, which all ranks have."""
    from deepspeed.utils import safe_set_full_optimizer_state

    adam = optimizer.optimizer
    if not state and not adam.state:
        return
    step = next(iter(state.values()))["step"] if state else torch.zeros(())
    for group in adam.param_groups:  # of each one flat part, for which AdamW makes moments at its first step
        for flat in group["params"]:
            own = adam.state[flat]
            if not own:
                own |= {name: torch.zeros_like(flat) for name in MOMENTS}
            own["step"] = step.clone()
    optimizer._lazy_init_hp_params_optimizer_state()  # says where each weight's moments lie in these
    for number, weight in enumerate(weights):
        for name in MOMENTS:
            full = state[str(number)][name].to(weight.device) if state else torch.zeros_like(weight)
            safe_set_full_optimizer_state(weight, full, name)
