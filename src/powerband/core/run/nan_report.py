"""NonFiniteError: the message of a run whose losses are not finite, with the update, the batch and a likely cause.

A hint is given where it was measured: who made the first bad value, and how the norms of gradients went before it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from powerband.core.errors import ConfigError

GROWTH = 10.0
"""Factor from which on a gradient norm is said to have grown."""
LEAST = 8
"""Figures below which no trend is seen."""


class NonFiniteError(ConfigError):
    """A run that ended because a loss, a gradient norm, a weight or a value of an environment was not finite."""


def non_finite_error(
    faults: Sequence[dict[str, Any]], env_steps: int, where: str, good: str, again: str, settings: Any
) -> NonFiniteError:
    """The error of all ranks, in one paragraph.

    Args:
        faults: `NonFiniteFault` as a dict, of each rank that has one.
        env_steps: Global environment steps by now.
        where: Where the batches lie, a sentence.
        good: What the last checkpoint is, a sentence.
        again: Command that goes on from it; empty where there is none.
        settings: Of the learner, a dataclass; None where it has none.
    """
    fault = min(faults, key=lambda each: (each["update"] or each["batch_update"], not each["environment"]))
    several = len({each["rank"] for each in faults}) > 1
    rank = f" of rank {fault['rank']}" if several else ""
    words = [_what(fault, env_steps)]
    wrong = ", ".join(f"{leaf} ({fault['leaves'][leaf]})" for leaf in fault["environment"][:4])
    if wrong:
        words.append(f"An environment{rank} made them: {wrong}. {where} {good}")
        fix = "Mend the environment"
    else:
        inputs = [f"{leaf} ({said})" for leaf, said in list(fault["leaves"].items())[:4]]
        if fault["update"]:
            held = f"no bad value of an environment, only {', '.join(inputs)}" if inputs else "finite values only"
            words.append(
                f"{'The batches of all ranks' if several else 'The batch'} held {held}: the networks diverged."
            )
        hint, fix = gradient_trend(fault["trail"], settings)
        words.append(f"{hint} {where} {good}")
    words.append(f"{fix}, then go on: {again}" if again else f"{fix}, then start anew.")
    return NonFiniteError(" ".join(words))


def _what(fault: dict[str, Any], env_steps: int) -> str:
    if not fault["update"]:
        return f"Values that are not finite were about to be learned from and saved at env step {env_steps}."
    at = f"update {fault['update']} (by env step {env_steps})"
    if fault["count"] > 1:
        at = f"updates {fault['update'] - fault['count'] + 1} to {at.removeprefix('update ')}"
    if not fault["bad"]:
        return f"Weights ({', '.join(list(fault['leaves'])[:3])}) were not finite any more after {at}."
    named = ", ".join(f"{name} {fault['figures'][name]}" for name in fault["bad"][:3])
    more = f" and {len(fault['bad']) - 3} more" if len(fault["bad"]) > 3 else ""
    return f"{named}{more} at {at}: training cannot go on."


def gradient_trend(norm_history: dict[str, list[tuple[int, float]]], settings: Any) -> tuple[str, str]:
    """(what the gradient norms did, what that says to change) before the fault.

    Args:
        trail: Norm -> (update, value), in order.
        settings: Of the learner: its learning rates (lr, or name_lr) and max_grad_norm.
    """
    look = "Look at the saved batch and at the learning rates"
    series = {name: values for name, values in norm_history.items() if len(values) >= LEAST}
    if not series:
        return f"Fewer than {LEAST} updates came before: too few to say how the gradients went.", look
    grew: dict[str, tuple[float, float, int]] = {}
    for name, values in series.items():
        before = statistics.median(value for _, value in values[: len(values) // 4])
        last = max(value for _, value in values[-3:])
        grew[name] = (before, last, values[-1][0] - values[0][0])
    name = max(grew, key=lambda each: grew[each][1] / max(grew[each][0], 1e-30))
    before, last, updates = grew[name]
    factor = last / max(before, 1e-30)
    went = f"{name} went from {before:.3g} to {last:.3g} over the {updates} updates before"
    if factor < GROWTH:
        return f"{went}: the gradients did not grow, so neither a lower rate nor clipping is sure to help.", look
    said = f"{went}, {factor:.3g} times as much."
    own = name.rpartition("/")[2].removesuffix("grad_norm").strip("_")
    rate = next((key for key in (f"{own}_lr" if own else "lr", "lr") if hasattr(settings, key)), "")
    lower = f"Lower {rate} (it is {getattr(settings, rate):g})" if rate else "Lower the learning rate"
    if not hasattr(settings, "max_grad_norm"):
        return said, lower
    limit = settings.max_grad_norm
    if limit is None or limit > last:
        return said, f"{lower}, or clip at max_grad_norm={before:.2g} (nothing was clipped)"
    return f"{said} Gradients were clipped to max_grad_norm={limit:g} all the same, so more clipping is no cure.", lower
