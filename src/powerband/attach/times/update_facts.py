"""Facts of updates and of images: what the probe of the updates and the drawing of environments tell the diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from powerband.attach.times.process_times import ProcessTimes


def update_facts(leader: ProcessTimes, iterations: int) -> dict[str, Any]:
    """Returns the fields of `WindowFacts` that the probe of the updates fills; none if it has not ended in time.

    With a GPU they are those of the record of its kernels.

    Args:
        leader: Process that trains.
        iterations: Iterations of the window.
    """
    facts: dict[str, Any] = {}
    update_s = leader.ledger.by_host().seconds.get("update", 0.0) / leader.updates if leader.updates else 0.0
    if (device := leader.device) is not None:
        facts["device_busy"] = device.busy
        if iterations:
            facts["syncs_per_iteration"] = device.syncs * leader.updates / iterations
            facts["sync_s"] = device.sync_s
    for probe in leader.record.of_kind("update_profile")[-1:]:
        updates = max(1, probe["updates"])
        ready_s = leader.ledger.thread_s + leader.queue_s
        # The probe's times are those of operations that had a core, so the time without one leaves the update, too.
        own_s = update_s * (leader.ledger.thread_s / ready_s if ready_s > 0 else 1.0)
        if own_s > 0:
            facts["compute_share"] = min(1.0, probe["compute_s"] / updates / own_s)
            facts["update_operations"] = probe["operations"] / updates
        if probe["reads"] and iterations:
            facts["syncs_per_iteration"] = probe["reads"] / updates * leader.updates / iterations
            facts["sync_s"] = probe["read_s"] / probe["reads"]
    optimizers = leader.record.of_kind("optimizer")
    spans_s = leader.parts.get("backward", 0.0) + leader.parts.get("optimizer", 0.0)
    probes = leader.record.of_kind("threads_probe")
    if probes and optimizers and spans_s > 0:
        # The probe times backward passes and optimiser steps. The rest of an update has the same threads.
        spans_s /= leader.updates
        fewer = {each["threads"]: update_s * each["seconds"] / each["updates"] / spans_s for each in probes}
        facts["threads_s"] = {optimizers[0]["threads"]: update_s, **fewer}
    return facts


def render_facts(leader: ProcessTimes, workers: Sequence[ProcessTimes]) -> dict[str, Any]:
    """Returns the fields of `WindowFacts` about images; none if no environment has drawn one.

    Args:
        leader: Process that trains.
        workers: Processes of the environments that it waits for.
    """
    share = leader.render_s / leader.ledger.wall_s
    env_s = sum(each.ledger.seconds.get("env", 0.0) for each in workers)
    if env_s > 0:
        share += leader.ledger.share("env_wait") * sum(each.render_s for each in workers) / env_s
    names = [line["name"] for each in (leader, *workers) for line in each.record.of_kind("renderer")]
    return {"renderer": names[0], "render_share": share} if names else {}
