"""NonFiniteError: reports values that are not finite. The message names the update, the batch and a likely cause.

Hints rest on measurements: the origin of the first bad value, and the gradient norms before it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from powerband.core.errors import ConfigError

MIN_GROWTH = 10.0
"""Factor from which the message reports that a gradient norm grew."""
MIN_HISTORY = 8
"""Number of gradient norms that a trend requires."""


class NonFiniteError(ConfigError):
    """A run ended because a loss, a gradient norm, a weight or a value of an environment was not finite."""


def non_finite_error(
    faults: Sequence[dict[str, Any]],
    env_steps: int,
    saved_batch: str,
    last_checkpoint: str,
    resume_command: str,
    settings: Any,
) -> NonFiniteError:
    """Builds the error that ends the run. Its message combines the faults of all ranks in one paragraph.

    Args:
        faults: `NonFiniteFault` of each affected rank, as a dict.
        env_steps: Environment steps so far, over all ranks.
        saved_batch: Sentence with the location of the saved batch.
        last_checkpoint: Sentence about the last checkpoint.
        resume_command: Command that resumes from the last checkpoint; empty without a checkpoint.
        settings: Configuration of the learner, a dataclass or None.
    """
    fault = min(faults, key=lambda each: (each["update"] or each["batch_update"], not each["environment"]))
    several = len({each["rank"] for each in faults}) > 1
    rank = f" of rank {fault['rank']}" if several else ""
    sentences = [_event(fault, env_steps)]
    bad_leaves = ", ".join(f"{leaf} ({fault['leaves'][leaf]})" for leaf in fault["environment"][:4])
    if bad_leaves:
        sentences.append(f"An environment{rank} produced them: {bad_leaves}. {saved_batch} {last_checkpoint}")
        fix = "Fix the environment"
    else:
        inputs = [f"{leaf} ({problem})" for leaf, problem in list(fault["leaves"].items())[:4]]
        if fault["update"]:
            batch = "The batches of all ranks" if several else "The batch"
            content = f"no bad value of an environment, only {', '.join(inputs)}" if inputs else "finite values only"
            sentences.append(f"{batch} contained {content}: the networks diverged.")
        hint, fix = gradient_trend(fault["norm_history"], settings)
        sentences.append(f"{hint} {saved_batch} {last_checkpoint}")
    sentences.append(f"{fix}, then resume: {resume_command}" if resume_command else f"{fix}, then start a new run.")
    return NonFiniteError(" ".join(sentences))


def _event(fault: dict[str, Any], env_steps: int) -> str:
    """The first sentence: the values that were not finite, and the update or step."""
    if not fault["update"]:
        part = "replay" if fault["environment"] else "learner"
        return f"The {part} contains values that are not finite at env step {env_steps}. They were not saved."
    at = f"update {fault['update']} (by env step {env_steps})"
    if fault["count"] > 1:
        at = f"updates {fault['update'] - fault['count'] + 1} to {at.removeprefix('update ')}"
    if not fault["bad"]:
        return f"Weights ({', '.join(list(fault['leaves'])[:3])}) are not finite after {at}."
    named = ", ".join(f"{name} {fault['figures'][name]}" for name in fault["bad"][:3])
    more = f" and {len(fault['bad']) - 3} more" if len(fault["bad"]) > 3 else ""
    return f"{named}{more} at {at}: training cannot continue."


def gradient_trend(norm_history: dict[str, list[tuple[int, float]]], settings: Any) -> tuple[str, str]:
    """Describes the gradient norms before the fault and recommends a change.

    Args:
        norm_history: Name of a gradient norm -> (number of the update, norm) pairs, in order.
        settings: Configuration of the learner with its learning rates (lr, or name_lr) and max_grad_norm.

    Returns:
        A sentence that describes the trend, and the start of a sentence that recommends a change.
    """
    inspect = "Inspect the saved batch and the learning rates"
    series = {name: values for name, values in norm_history.items() if len(values) >= MIN_HISTORY}
    if not series:
        return f"Fewer than {MIN_HISTORY} updates preceded: too few for a trend of the gradients.", inspect
    changes: dict[str, tuple[float, float, int]] = {}
    for name, values in series.items():
        before = statistics.median(value for _, value in values[: len(values) // 4])
        last = max(value for _, value in values[-3:])
        changes[name] = (before, last, values[-1][0] - values[0][0])
    name = max(changes, key=lambda each: changes[each][1] / max(changes[each][0], 1e-30))
    before, last, updates = changes[name]
    factor = last / max(before, 1e-30)
    trend = f"{name} changed from {before:.3g} to {last:.3g} over the {updates} updates before"
    if factor < MIN_GROWTH:
        return f"{trend}: the gradients did not grow, so a lower rate or clipping may not help.", inspect
    hint = f"{trend}, {factor:.3g} times as much."
    own = name.rpartition("/")[2].removesuffix("grad_norm").strip("_")
    rate = next((key for key in (f"{own}_lr" if own else "lr", "lr") if hasattr(settings, key)), "")
    lower = f"Lower {rate} (it is {getattr(settings, rate):g})" if rate else "Lower the learning rate"
    if not hasattr(settings, "max_grad_norm"):
        return hint, lower
    limit = settings.max_grad_norm
    if limit is None or limit > last:
        return hint, f"{lower}, or clip at max_grad_norm={before:.2g} (nothing was clipped)"
    return (
        f"{hint} Gradients were already clipped to max_grad_norm={limit:g}, so stronger clipping will not help.",
        lower,
    )
