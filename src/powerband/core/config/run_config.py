"""RunConfig: the settings that every run has, whatever it trains."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from powerband.core.config.flags import at_least
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
class RunConfig:
    """What every run has, whatever is trained. Sizes and counters are global: summed over ranks."""

    seed: int = 0
    """One seed for everything; streams of environments and purposes are derived from it."""
    gpus: str = "auto"
    """GPUs by index inside CUDA_VISIBLE_DEVICES, such as 0,2; all; none or cpu; cuda is the first one; auto is one GPU
    where there is one."""
    nproc: int = 1
    """Ranks on this machine; with gpus=none they are CPU ranks. Several GPUs are one rank each without this word."""
    nnodes: str = "1"
    """Machines, as torchrun counts them: 2, or 1:4 for an elastic range. More than one needs rdzv_endpoint."""
    rdzv_endpoint: str = ""
    """host:port where the machines of one run meet."""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Arithmetic of forward and backward passes; parameters stay fp32. auto is the faster of fp32 and bf16 here, by a
    measurement when a new run starts; a resume keeps what that found."""
    threads: int = 0
    """CPU threads of each rank; 0 shares all cores among the ranks of this machine."""
    overlap: bool = False
    """Run due updates while simulators in worker processes step: same updates, one step of policy lag."""
    run_dir: str = ""
    """Run folder; empty means runs/<recipe>-<variant>-<time>."""
    resume: str = ""
    """Go on with a run: its folder, a checkpoint, any file in either, or last."""
    env_steps: int = 1_000_000
    """Budget in environment steps over all ranks; 0 leaves it to the stage, where a recipe has several."""
    time_limit_s: float = 0.0
    """Seconds after which the run saves and ends; 0 is no limit."""
    log_interval: int = 0
    """Environment steps between two log lines; 0 leaves it to log_interval_s."""
    log_interval_s: float = 10.0
    """Seconds between two log lines."""
    eval_interval: int = 0
    """Environment steps between two evaluations; 0 is none."""
    save_interval: int = 0
    """Environment steps between two checkpoints; 0 saves at the end only."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    tf32: bool = True
    """Let CUDA compute fp32 products and convolutions in TF32."""
    cudnn_benchmark: bool = True
    """Let cuDNN try its convolution algorithms on the first batch of every shape and keep the fastest."""
    cudnn_deterministic: bool = False
    """Only cuDNN algorithms that give the same bits each time; slower, and it overrules cudnn_benchmark."""
    detect_anomaly: bool = False
    """Name the operation whose gradient is not finite; slow, for looking for a fault."""
    lr_scale: Literal["none", "sqrt", "linear"] = "none"
    """Multiply learning rates by the square root of the number of ranks, by the number, or not at all; printed."""

    def __post_init__(self) -> None:
        at_least(self, threads=0, time_limit_s=0, log_interval=0, log_interval_s=0, eval_interval=0, save_interval=0)
        at_least(self, nproc=1, env_steps=0, keep_checkpoints=1)
        if not re.fullmatch(r"auto|all|none|cpu|cuda(:\d+)?|\d+(,\d+)*,?", self.gpus.replace(" ", "")):
            raise ConfigError(f"gpus={self.gpus} names no GPUs. Write gpus=0,2, gpus=all, gpus=none or gpus=auto.")
        nodes = re.fullmatch(r"(\d+)(?::(\d+))?", self.nnodes)
        if not nodes or not 1 <= int(nodes[1]) <= int(nodes[2] or nodes[1]):
            raise ConfigError(f"nnodes={self.nnodes} is no number of machines. Write nnodes=2, or nnodes=1:4.")
