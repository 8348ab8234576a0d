"""Advice for learning from recorded data: threads of the batch loader, and the memory that holds the data."""

from __future__ import annotations

import math

from powerband.tune.advise.advice import MIN_GAIN
from powerband.tune.advise.adviser import Adviser

MAX_LOADER_THREADS = 8
"""Largest number of loader threads that is advised."""


def loader_threads(adviser: Adviser) -> None:
    """Adds advice on more threads of the batch loader, with predicted gains.

    An iteration lasts as long as the slower of batch preparation and training loop.
    """
    facts, ledger, model = adviser.facts, adviser.ledger, adviser.model
    now, wait = adviser.knobs.get("loader_threads"), ledger.share("data_wait")
    if now is None or wait < MIN_GAIN - 1:
        return
    rest = model.iteration_s * (1 - wait)
    # If the loop waits for loader threads, preparing a batch takes them a full iteration.
    preparing = now * model.iteration_s if now else model.iteration_s * wait
    floor = ledger.cpu_s * adviser.ranks / max(facts.iterations, 1) / max(facts.cores, 1)
    for threads in sorted({now + 1, 2 * now, min(MAX_LOADER_THREADS, math.ceil(preparing / max(rest, 1e-9)))}):
        if threads > now:
            seconds = max(rest, preparing / threads, floor)
            adviser.add("loader_threads", threads, model.steps / seconds, "threads prepare batches during updates")


def place(adviser: Adviser) -> None:
    """Adds advice on the setting ``place=device``, which keeps recorded data in device memory.

    One gather (an indexed copy) on the device then builds a batch, without a copy from the host. A short run
    measures the gain; if `adviser.probe` is None, the gain is predicted.
    """
    model, now = adviser.model, adviser.knobs.get("place")
    wait = adviser.ledger.share("data_wait", "h2d")
    if now not in ("host", "auto") or wait < MIN_GAIN - 1:
        return
    if adviser.on_cpu:
        why = "cannot help: the device is the CPU, whose memory is the host's"
        adviser.add("place", "device", model, why, always_listed=True)
    elif adviser.probe is not None:
        result = adviser.run_with({"place": "device"})
        if result is not None and result.facts[0].iterations:
            why = "a batch is one gather on the device"
            adviser.add("place", "device", adviser.rate_of(result), why, probed=True)
    elif now == "host":  # with auto, the rows may be on the device already
        rate = model.steps_per_s / max(1 - wait, 1e-9)
        why = "at most: no wait for batches and no copies, but one gather per batch"
        adviser.add("place", "device", rate, why)
