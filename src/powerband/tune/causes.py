"""Causes: the one table of what can bind a run, with stable ids and exit codes, and the thresholds of their rules.

The thresholds were set from the meaning of the accounts, before the faults of `benchmarks/faults.py` were run, and
are FROZEN: a fault that is named wrongly is reported, and no figure here is moved to fit it.
"""

from __future__ import annotations

CAUSES: dict[str, tuple[int, str]] = {
    "healthy": (0, "no account binds alone"),
    "env-bound": (10, "simulators take most of the time"),
    "env-straggler": (11, "one environment is much slower than the others, which wait for it"),
    "no-overlap": (12, "simulators and learner take turns and could run at the same time"),
    "data-wait": (13, "the loop waits for its data loader"),
    "update-bound": (14, "updates take most of the time"),
    "small-batch": (
        15,
        "an update costs nearly the same whatever its batch: starting its operations is what takes time",
    ),
    "host-sync": (16, "Python asks tensors for their values and waits for the device"),
    "eval-blocking": (17, "training stands still while it is evaluated"),
    "log-blocking": (18, "training stands still while figures are written"),
    "save-blocking": (19, "training stands still while checkpoints are written"),
    "rank-straggler": (20, "one rank is slower than the others, which wait for it"),
    "thread-oversubscription": (21, "more threads than cores"),
    "software-rendering": (22, "pictures are drawn by the processor"),
    "comm-bound": (23, "ranks spend their time in collectives"),
    "act-bound": (24, "choosing actions takes most of the time"),
    "too-short": (30, "too little was seen to judge"),
}
"""Id -> (exit code of `powerband profile`, what it means)."""

# -- thresholds: shares of the wall time, where nothing else is said -------------------------------------------------

ENV_BOUND = 0.60
"""Stepping or waiting for simulators, less what a more special cause explains."""
UPDATE_BOUND = 0.75
"""Sampling, returns and updates, less what a more special cause explains."""
ACT_BOUND = 0.50
"""Choosing actions and storing steps."""
NO_OVERLAP = 0.25
"""The smaller of waiting for simulators and updating: what overlap could hide."""
DATA_WAIT = 0.20
BLOCKING = 0.10
"""Evaluation, logging or saving, each by itself."""
COMM_BOUND = 0.20
"""Collectives on the rank that spends least in them: nobody is waited for there."""
RANK_STRAGGLER = 0.15
"""Collectives on the rank that spends most in them, less those of the rank that spends least."""
ENV_STRAGGLER = 0.15
"""Waiting that would end if the slowest environment were like the median one."""
STRAGGLER_RATIO = 2.0
"""The slowest environment's step, in steps of the median environment."""
STRAGGLER_EXCESS_S = 0.5e-3
"""Seconds by which it is slower; the first environment of a worker has cold caches and is always a bit slower."""
SMALL_BATCH = 0.25
"""Update time that does not depend on the batch."""
SMALL_BATCH_FIXED = 0.60
"""The same as a share of one update."""
HOST_SYNC = 0.10
"""Questions to tensors times the cost of one."""
OVERSUBSCRIBED = 0.10
"""Time that would be saved with as many threads as cores, measured on the update itself."""
SOFTWARE_RENDERING = 0.30
"""Stepping or waiting for simulators that draw in software."""
OTHER_LOAD = 0.25
"""Cores, as a share of all, that other processes use: worth a remark, as all figures are then pessimistic."""
QUEUED = 0.10
"""Time that the loop's thread was ready to run and no core was free: worth a remark too."""
LEAST_ITERATIONS = 3
LEAST_SECONDS = 0.2
"""Below either nothing is judged."""

SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "swiftshader", "osmesa", "software")


def causes_table() -> str:
    """The causes with their exit codes, one a line."""
    return "\n".join(f"  {code:>3}  {name:<24} {what}" for name, (code, what) in CAUSES.items())
