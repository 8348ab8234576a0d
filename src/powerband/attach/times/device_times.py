"""Device times: divides the ledger of a script on a GPU by what its device did, from the record of its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from powerband.attach.processes.records import Record
from powerband.tune.measure.ledger import Ledger

PARTS = ("update", "act", "env")
"""Accounts that launch kernels."""
ENV_ON_DEVICE = 0.05
"""If kernels that environments launch take less than this share of their time, they count as running on the CPU."""


@dataclass(frozen=True)
class DeviceTimes:
    """What the device of a script did in the window, by the record of some iterations after it.

    Attributes:
        busy: Share of the wall time in which it ran a kernel or a copy, 0 to 1.
        kernels: Kernels and copies per update.
        syncs: Calls in which the host waited for it, per update.
        sync_s: Seconds of one of these calls.
    """

    busy: float
    kernels: float
    syncs: float
    sync_s: float


def device_times(ledger: Ledger, record: Record, updates: int, env_steps: int) -> tuple[Ledger, DeviceTimes | None]:
    """Divides a ledger by what the device did.

    The time of an account whose work runs on the device is divided into that of its kernels and into waiting for
    launches (``launch``). Waiting of the host for kernels, which samples find in ``h2d``, belongs to the account that
    launched them.

    Args:
        ledger: Times of the host.
        record: What the process has written.
        updates, env_steps: Updates and environment steps of the window.

    Returns:
        (ledger, figures of the device). Without a record of kernels the ledger is unchanged, and the figures are None.
    """
    profiles = record.of_kind("kernel_profile")
    if not profiles or not profiles[-1]["kernels"] or not profiles[-1]["updates"]:
        return ledger, None
    profile = profiles[-1]
    counts = {"update": updates / profile["updates"]}
    counts["act"] = counts["env"] = env_steps / profile["env_steps"] if profile["env_steps"] else 0.0
    kernels_s = {part: profile["launched_s"].get(part, 0.0) * counts[part] for part in PARTS}
    seconds = dict(ledger.seconds)
    for part in ("update", "act"):
        waiting_s = min(seconds.get("h2d", 0.0), kernels_s[part])
        if waiting_s:
            seconds[part] = seconds.get(part, 0.0) + waiting_s
            seconds["h2d"] -= waiting_s
    known = PARTS if profile["env_steps"] else ("update",)  # a record without environment steps has no actions either
    shares = {part: min(1.0, kernels_s[part] / seconds[part]) for part in known if seconds.get(part)}
    if shares.get("env", 0.0) < ENV_ON_DEVICE:
        shares.pop("env", None)
    copies_s = profile["launched_s"].get("copy", 0.0) * counts["update"]
    busy = min(1.0, (sum(kernels_s.values()) + copies_s) / ledger.wall_s)
    times = DeviceTimes(
        busy,
        profile["kernels"] / profile["updates"],
        profile["syncs"] / profile["updates"],
        profile["sync_s"] / max(1, profile["syncs"]),
    )
    return replace(ledger, seconds=seconds).by_device(shares), times
