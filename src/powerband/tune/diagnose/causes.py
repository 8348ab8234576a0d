"""Causes: the table of bottlenecks with stable ids and exit codes, and the thresholds of their rules.

The thresholds follow from the meaning of the accounts (categories of wall time). They were set before the first run of
`benchmarks/diagnosis/faults.py`, which injects known bottlenecks and checks the diagnosis. They are FROZEN: a fault
that is diagnosed wrongly is reported, and no threshold is changed to fit it. Unless its docstring states another unit,
a threshold is a share of the wall time.
"""

from __future__ import annotations

CAUSES: dict[str, tuple[int, str]] = {
    "healthy": (0, "no single account limits the run"),
    "env-bound": (10, "simulators take most of the time"),
    "env-straggler": (11, "one environment is much slower than the others, which wait for it"),
    "no-overlap": (12, "simulators and learner alternate although they could run at the same time"),
    "data-wait": (13, "the loop waits for its batch loader"),
    "update-bound": (14, "updates take most of the time"),
    "small-batch": (
        15,
        "the time of an update hardly depends on its batch, because launching its operations dominates",
    ),
    "host-sync": (16, "the loop converts tensors to Python values and waits for the device"),
    "eval-blocking": (17, "training stops during evaluation"),
    "log-blocking": (18, "training stops while metrics are written"),
    "save-blocking": (19, "training stops while checkpoints are written"),
    "rank-straggler": (20, "one rank is slower than the others, which wait for it"),
    "thread-oversubscription": (21, "more threads than cores"),
    "software-rendering": (22, "the CPU renders the images"),
    "comm-bound": (23, "ranks spend their time in collectives"),
    "act-bound": (24, "choosing actions takes most of the time"),
    "launch-bound": (25, "the device waits while the host launches its kernels"),
    "too-short": (30, "the measurement was too short for a diagnosis"),
}
"""Id -> (exit code of `powerband profile`, meaning)."""

# -- thresholds: shares of the wall time unless stated otherwise -----------------------------------------------------

ENV_BOUND = 0.60
"""Stepping or waiting for simulators, minus the share that a special cause explains."""
UPDATE_BOUND = 0.75
"""Sampling, returns and updates, minus the share that a special cause explains."""
ACT_BOUND = 0.50
"""Choosing actions and storing steps."""
LAUNCH_BOUND = 0.40
"""Waiting of the device for launches, in accounts whose work runs on the device."""
NO_OVERLAP = 0.25
"""The smaller of waiting for simulators and updating, which overlap could hide."""
DATA_WAIT = 0.20
"""Waiting for the batch loader."""
BLOCKING = 0.10
"""Evaluation, logging or checkpoints, each separately."""
COMM_BOUND = 0.20
"""Collective calls on the rank that spends least time in them, because this rank does not wait for another rank."""
RANK_STRAGGLER = 0.15
"""Time in collective calls on the rank that spends most, minus the time on the rank that spends least."""
ENV_STRAGGLER = 0.15
"""Waiting that would end if the slowest environment were as fast as the median one."""
STRAGGLER_RATIO = 2.0
"""Step of the slowest environment divided by the step of the median environment."""
STRAGGLER_EXCESS_S = 0.5e-3
"""Seconds by which the step of the slowest environment exceeds the median step. The first environment of a worker has
cold caches and is always slightly slower."""
SMALL_BATCH = 0.25
"""Update time that does not depend on the batch."""
SMALL_BATCH_FIXED = 0.60
"""Part of an update that does not depend on the batch, as a share of the time of that update."""
HOST_SYNC = 0.10
"""Number of host-device synchronisations times the cost of one."""
OVERSUBSCRIPTION = 0.10
"""Time that updates would save with as many threads as cores, from timed single updates."""
SOFTWARE_RENDERING = 0.30
"""Stepping or waiting for simulators that render in software."""
OTHER_LOAD = 0.25
"""Share of the cores: if other processes use more, a note warns that the figures are pessimistic."""
CPU_QUEUE = 0.10
"""Time in which the thread of the training loop was ready and had no core; if it is longer, a note reports it."""
UNCOVERED = 0.05
"""Time outside of all spans (account ``other``); if it is longer, a note reports it."""
MIN_ITERATIONS = 3
"""Smallest number of iterations for a diagnosis."""
MIN_SECONDS = 0.2
"""Shortest window for a diagnosis, in seconds."""

SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "swiftshader", "osmesa", "software")
"""Parts of the names of renderers that run on the CPU."""


def causes_table() -> str:
    """Formats the causes (kinds of bottleneck) as text, one per line with its exit code and meaning."""
    return "\n".join(f"  {code:>3}  {name:<24} {meaning}" for name, (code, meaning) in CAUSES.items())
