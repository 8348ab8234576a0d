"""Advice on the device, on the number of ranks, and on the intervals of evaluation, checkpoints and log lines."""

from __future__ import annotations

from powerband.core.errors import ConfigError
from powerband.tune.advise.adviser import Adviser

INTERVAL_FACTOR = 10
"""Factor on the interval of an evaluation, checkpoint or log line that blocks training."""
BLOCKING_SHARE = 0.02
"""Smallest share of the wall time for which a longer interval is considered."""


def nproc(adviser: Adviser) -> None:
    """Adds advice on two ranks, each with half of the environments and of the batch, measured in a short run.

    It adds no advice if the machine lacks cores or GPUs for two ranks.
    """
    if adviser.ranks > 1 or adviser.probe is None or (adviser.gpus or adviser.facts.cores) < 2:
        return
    also = {} if adviser.gpus else {"threads": max(1, adviser.facts.cores // 2)}
    try:
        config = adviser.config_with({"nproc": 2, **also})
    except (ConfigError, ValueError):  # sizes do not divide by two, or the user named the GPUs
        return
    result = adviser.measured_run(config, "nproc=2")
    if result is not None and result.facts[0].iterations:
        why = "two ranks share environments and batch"
        adviser.add("nproc", 2, adviser.rate_of(result), why, probed=True, also=also)


def device(adviser: Adviser) -> None:
    """Adds advice to use the CPU if the GPU waits for launches, measured in a short run.

    The precision of the CPU is chosen anew, because a GPU and a CPU are fast with different ones.
    """
    waits = any(finding.cause == "launch-bound" for finding in adviser.diagnosis.findings)
    if adviser.on_cpu or adviser.probe is None or not waits:
        return
    also = {"precision": "auto"}
    adviser.run_with({"gpus": "none", **also})  # compiles the functions for the CPU
    result = adviser.run_with({"gpus": "none", **also})
    if result is not None and result.facts[0].iterations:
        why = "the GPU waits for launches; measured on the CPU"
        adviser.add("gpus", "none", adviser.rate_of(result), why, probed=True, also=also)


def intervals(adviser: Adviser) -> None:
    """Adds advice on longer intervals between evaluations, checkpoints and log lines if these take much of the time."""
    log, evaluation = (
        name if adviser.knobs.get(name, 0) else f"{name}_s" for name in ("log_interval", "eval_interval")
    )
    for knob, account in ((evaluation, "eval"), ("save_interval", "save"), (log, "log")):
        value, share = adviser.knobs.get(knob, 0), adviser.ledger.share(account)
        if value and share >= BLOCKING_SHARE:
            if not knob.endswith("_s"):  # one iteration with many steps passes several short intervals
                value = max(value, round(adviser.model.steps))
            rate = adviser.model.steps_per_s / (1 - share * (1 - 1 / INTERVAL_FACTOR))
            adviser.add(knob, value * INTERVAL_FACTOR, rate, f"training stops for {share:.0%} of the time")
