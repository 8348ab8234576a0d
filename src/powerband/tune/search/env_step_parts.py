"""Parts of an environment step: predicts their seconds, also under other settings whose effect was measured."""

from __future__ import annotations

from powerband.tune.predict.model import ThroughputModel

PARTS = ("env", "wait", "act", "update", "fixed")
SMALL = 0.01
"""A part below this share of a step changes by a difference of seconds, because a ratio would be noise."""


def seconds_by_part(model: ThroughputModel) -> dict[str, float]:
    """Returns part -> seconds per environment step over all ranks, as the throughput model predicts them.

    The parts are the fields of `ThroughputModel` with these names: env (stepping), wait (for workers), act, update,
    comm (all-reduces) and fixed (other work).
    """
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


def env_step_seconds(seconds: dict[str, float], overlap: bool) -> float:
    """Adds the seconds of all parts and returns the seconds per environment step.

    Args:
        seconds: Part of a step -> its seconds, a result of `seconds_by_part`.
        overlap: Whether updates run while simulators step; the shorter of waiting and updating then costs nothing.
    """
    updates = seconds["update"] + seconds["comm"]
    wait_and_update = max(seconds["wait"], updates) if overlap else seconds["wait"] + updates
    return seconds["env"] + seconds["act"] + seconds["fixed"] + wait_and_update


def part_factors(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Compares the seconds of each part of an environment step before and after a change of settings.

    Args:
        before: Part of a step -> its seconds before the change, a result of `seconds_by_part`.
        after: The same after the change.

    Returns:
        Part -> its seconds after the change divided by those before. A part that took at most 1 % of the step has
        the key ``+part`` instead, with the seconds that the change adds.
    """
    least = SMALL * sum(before.values())
    factors: dict[str, float] = {}
    for part in PARTS:
        if before[part] > least:
            factors[part] = after[part] / before[part]
        else:
            factors[f"+{part}"] = after[part] - before[part]
    return factors


def with_factors(seconds: dict[str, float], factors: list[dict[str, float]]) -> dict[str, float]:
    """Applies the effects of several changes to the seconds of each part, and returns the changed seconds.

    Args:
        seconds: Part of a step -> its seconds, a result of `seconds_by_part`.
        factors: Results of `part_factors`, one per change.
    """
    changed = dict(seconds)
    for each in factors:
        for part in PARTS:
            changed[part] = max(0.0, changed[part] * each.get(part, 1.0) + each.get(f"+{part}", 0.0))
    return changed
