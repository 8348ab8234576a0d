"""Knobs of loops that learn from what was recorded: who makes their batches, and where the rows lie."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from powerband.tune.turn import WORTH

if TYPE_CHECKING:
    from powerband.tune.advice import Adviser

MOST_THREADS = 8
"""Threads of a loader that are advised at most."""


def loader_threads(adviser: Adviser) -> None:
    """Batches made ahead: an iteration then takes as long as the slower of their making and of all else."""
    facts, ledger, model = adviser.facts, adviser.ledger, adviser.model
    now, wait = adviser.knobs.get("loader_threads"), ledger.share("data_wait")
    if now is None or wait < WORTH - 1:
        return
    rest = model.iteration_s * (1 - wait)
    # Where threads make them already and are waited for, they are what an iteration takes.
    making = now * model.iteration_s if now else model.iteration_s * wait
    floor = ledger.cpu_s * adviser.ranks / max(facts.iterations, 1) / max(facts.cores, 1)
    for threads in sorted({now + 1, 2 * now, min(MOST_THREADS, math.ceil(making / max(rest, 1e-9)))}):
        if threads > now:
            seconds = max(rest, making / threads, floor)
            adviser.add("loader_threads", threads, model.steps / seconds, "batches are made while updates run")


def place(adviser: Adviser) -> None:
    """Rows on the device, where a batch is one gather."""
    model, now = adviser.model, adviser.knobs.get("place")
    wait = adviser.ledger.share("data_wait", "h2d")
    if now not in ("host", "auto") or wait < WORTH - 1:
        return
    if adviser.on_cpu:
        why = "cannot help: the device is the processor, and its memory is the host's"
        adviser.add("place", "device", model, why, listed=True)
    elif adviser.probe is not None:
        seen = adviser.tried("place", "device")
        if seen is not None and seen.facts[0].iterations:
            predicted = seen.steps_per_s / adviser.measured.steps_per_s * model.steps_per_s
            adviser.add("place", "device", predicted, "a batch is one gather on the device", probed=True)
    elif now == "host":  # without a probe nobody knows where auto has put them
        rate = model.steps_per_s / max(1 - wait, 1e-9)
        adviser.add("place", "device", rate, "at most: no wait for batches and no copies, but one gather each")


RECORDED = (loader_threads, place)
