"""RunConfig: the settings that all runs share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from powerband.core.config.ranges import (
    MAX_PROCESSES,
    Count,
    FilePath,
    PositiveCount,
    Range,
    Seconds,
    Seed,
    Threads,
    check_ranges,
)
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError

GPUS = re.compile(r"auto|all|none|cpu|cuda(:[0-9]{1,4})?|[0-9]{1,4}(,[0-9]{1,4})*,?")
NODES = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
@check_ranges
class RunConfig:
    """Settings of a run, for all recipes. Sizes and counters are global: summed over ranks."""

    seed: Seed = 0
    """Seed of the run. The random streams of environments, networks and batches are derived from it."""
    gpus: str = "auto"
    """GPUs: indices within CUDA_VISIBLE_DEVICES, such as 0,2; all; none or cpu; cuda for the first GPU; auto for one
    GPU per rank, or the CPU on a machine without GPUs."""
    nproc: Annotated[int, Range(at_least=1, at_most=MAX_PROCESSES)] = 1
    """Ranks on this machine; with gpus=none they run on the CPU. A list of GPUs implies one rank per GPU."""
    nnodes: str = "1"
    """Number of machines, as in torchrun: 2, or 1:4 to continue with fewer and take in new ones. More than one requires
    rdzv_endpoint."""
    rdzv_endpoint: str = ""
    """Rendezvous address of a run on several machines, as host:port. Further ones, separated by commas, are used one
    after the other if the machine of the one before is lost."""
    max_restarts: Annotated[int, Range(at_least=0, at_most=1000)] = 0
    """Restarts of the ranks from the last checkpoint after a rank or machine was lost. A range in nnodes implies 10."""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Precision of forward and backward passes; parameters stay fp32. auto measures fp32 and bf16 when a new run starts
    and takes the faster one; a resumed run keeps the choice."""
    threads: Threads = 0
    """CPU threads of each rank; 0 divides all cores among the ranks of this machine."""
    overlap: bool = False
    """Run due updates while simulators in worker processes step. Updates stay the same; the policy lags one step."""
    run_dir: FilePath = ""
    """Run folder; empty means runs/<recipe>-<variant>-<time>-<random>."""
    storage: Literal["auto", "shared", "local"] = "auto"
    """Checkpoints of a run on several machines: shared requires one folder that all of them see; local keeps whole
    checkpoints in the run_dir of each machine that does not see that of rank 0; auto sends them to rank 0 instead, or
    keeps them locally if the run has restarts."""
    resume: FilePath = ""
    """Run to continue: its folder, a checkpoint, any file in either, or last for the newest run."""
    env_steps: Count = 1_000_000
    """Budget in environment steps over all ranks; 0 uses the budget of the stage, in recipes with several stages."""
    time_limit_s: Seconds = 0.0
    """Seconds after which the run saves and ends; compilation does not count. 0 is no limit."""
    log_interval: Count = 0
    """Environment steps between two log lines; 0 uses log_interval_s."""
    log_interval_s: Seconds = 10.0
    """Seconds between two log lines."""
    eval_interval: Count = 0
    """Environment steps between two evaluations; 0 evaluates checkpoints as they are written, see eval_share."""
    eval_interval_s: Seconds = 0.0
    """Seconds of training between two evaluations, whose own time does not count; 0 uses eval_interval alone."""
    eval_share: Annotated[float, Range(at_least=0, at_most=0.5)] = 0.02
    """Largest share of the time that evaluations of checkpoints may take in the training process. The first one is not
    limited, because its duration is not known yet; the next one waits until the share is met. Evaluations at
    eval_interval or eval_interval_s are not limited either. 0 evaluates at these intervals only."""
    eval_process: Literal["auto", "on", "off"] = "auto"
    """Evaluate in a process of its own, on the CPU and with low priority: on, off, or auto if a core is free and
    evaluations are at least 10 s apart. The results enter the curves at the step of their checkpoint."""
    save_interval: Count = 0
    """Environment steps between two checkpoints, in addition to save_interval_s; 0 uses save_interval_s alone."""
    save_interval_s: Seconds = 120.0
    """Seconds between two checkpoints; the first one is due after half of them. They are stretched so that saving takes
    at most 1 % of the time. 0 saves by save_interval and at the end only."""
    keep_checkpoints: PositiveCount = 2
    """Number of newest checkpoints to keep."""
    stall_s: Seconds = 60.0
    """Seconds without progress after which a run counts as stalled and names the rank that is the cause. What computes
    may take 10 times as long; start, compilation, evaluations and checkpoints 10 times, or 60 times while they compute.
    0 disables."""
    on_stall: Literal["end", "warn"] = "end"
    """What follows a stall: end the run with status 142, or warn."""
    tensorboard: bool = True
    """Write TensorBoard events in addition to metrics.jsonl."""
    tf32: bool = True
    """Let CUDA compute fp32 matrix products and convolutions in TF32."""
    cudnn_benchmark: bool = True
    """Let cuDNN measure its convolution algorithms on the first batch of each shape and use the fastest."""
    cudnn_deterministic: bool = False
    """Use only cuDNN algorithms with bit-identical results; slower, and overrides cudnn_benchmark."""
    detect_anomaly: bool = False
    """Report the operation whose gradient is not finite; slow, for debugging."""
    lr_scale: Literal["none", "sqrt", "linear"] = "none"
    """Multiply learning rates by the number of ranks (linear), by its square root (sqrt), or not at all (none)."""

    def __post_init__(self) -> None:
        if not GPUS.fullmatch(self.gpus.replace(" ", "")):
            raise ConfigError(
                f"gpus={shortened(self.gpus)} is not valid. Write gpus=0,2, gpus=all, gpus=none or gpus=auto."
            )
        if 0 < self.stall_s < 1:
            raise ConfigError(f"stall_s={self.stall_s:g} is below 1. Write stall_s=60, or stall_s=0 to watch nothing.")
        nodes = NODES.fullmatch(self.nnodes)
        if not nodes or not 1 <= int(nodes[1]) <= int(nodes[2] or nodes[1]):
            raise ConfigError(
                f"nnodes={shortened(self.nnodes)} is not a valid number of machines. Write nnodes=2, or nnodes=1:4."
            )
