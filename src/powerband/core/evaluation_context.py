"""Evaluation context: the device, precision and threads of ``powerband eval``, from options that all recipes share."""

from __future__ import annotations

import torch

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.machine.device import device_names
from powerband.core.optim.precision import PrecisionName
from powerband.core.rank_context import RankContext


def evaluation_context(gpus: str, precision: PrecisionName, threads: int = 0) -> RankContext:
    """Creates the context of a learner that is evaluated.

    Args:
        gpus: One GPU by its index, as in `RunConfig.gpus`; none for the CPU.
        precision: Precision of the networks: fp32, bf16 or fp16.
        threads: CPU threads of torch; 0 leaves the number to torch.

    Raises:
        ConfigError: The GPU does not exist, or there are several.
    """
    devices = device_names(RunConfig(gpus=gpus))
    if len(devices) > 1:
        raise ConfigError(f"gpus={gpus} names {len(devices)} GPUs, but an evaluation uses one. Write gpus=0.")
    if threads:
        torch.set_num_threads(threads)
    return RankContext.single(devices[0], precision)
