"""Parts of an environment step: their seconds by the throughput model, and what a probed alternative makes of each."""

from __future__ import annotations

from powerband.tune.model import Throughput

PARTS = ("env", "wait", "act", "update", "fixed")
SMALL = 0.01
"""A part below this share of an iteration is not multiplied: the probe's difference is added."""


def seconds_of(model: Throughput) -> dict[str, float]:
    """Seconds of each part for each environment step, over all ranks."""
    n, steps = model.num_envs, max(model.steps, 1e-9)
    parts = {
        "env": model.env(n),
        "wait": model.wait(n),
        "act": model.act(n),
        "update": model.updates * model.update(model.rows),
        "comm": model.updates * model.comm,
        "fixed": model.fixed,
    }
    return {part: seconds / steps for part, seconds in parts.items()}


def total(seconds: dict[str, float], overlap: bool) -> float:
    """Seconds of an environment step."""
    updates = seconds["update"] + seconds["comm"]
    together = max(seconds["wait"], updates) if overlap else seconds["wait"] + updates
    return seconds["env"] + seconds["act"] + seconds["fixed"] + together


def turned(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What a probe made of each part: a factor; where the part was next to nothing, seconds to add (``+part``)."""
    least = SMALL * sum(before.values())
    found: dict[str, float] = {}
    for part in PARTS:
        if before[part] > least:
            found[part] = after[part] / before[part]
        else:
            found[f"+{part}"] = after[part] - before[part]
    return found


def changed(seconds: dict[str, float], factors: list[dict[str, float]]) -> dict[str, float]:
    """`seconds` under several probed alternatives together."""
    found = dict(seconds)
    for each in factors:
        for part in PARTS:
            found[part] = max(0.0, found[part] * each.get(part, 1.0) + each.get(f"+{part}", 0.0))
    return found
