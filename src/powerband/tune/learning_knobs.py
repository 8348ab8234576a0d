"""Knobs that change what is learnt: environments, update ratio, batches, epochs. They are advised and never applied."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from powerband.tune.model import fit

if TYPE_CHECKING:
    from powerband.tune.advice import Adviser


def num_envs(adviser: Adviser) -> None:
    """More environments, from a short run with four times as many; the model then knows what grows with them."""
    n = adviser.knobs.get("num_envs")
    if not n or adviser.probe is None or adviser.ledger.share("env", "env_wait", "act", "store", "other") < 0.15:
        return
    seen = adviser.probe(adviser.knobs.turned("num_envs", 4 * n))
    if seen is None or not seen.facts[0].iterations:
        return
    model = adviser.model = fit(adviser.ledger, adviser.facts, (seen.ledgers[0], seen.facts[0]))
    for factor in (2, 4, 8):
        predicted = model.with_envs(factor * model.num_envs)
        why = f"each call steps {factor} times as many"
        adviser.add("num_envs", factor * n, predicted, why, learning=True, probed=factor == 4)


def ratio(adviser: Adviser) -> None:
    """Update interval and updates: what an interval cannot do, and what fewer updates would."""
    k, u = adviser.knobs.get("update_interval"), adviser.knobs.get("updates_per_interval")
    if k is None:
        return
    if u in (0, k):
        adviser.add(
            "update_interval",
            10 * k,
            adviser.model,
            "cannot help: as many updates fall due with it (updates_per_interval follows), total work is unchanged",
            listed=True,
        )
    due = u or k
    interval, updates = (k, due // 2) if due >= 2 else (2 * k, due)
    predicted = adviser.model.with_schedule(interval, updates)
    if due >= 2:
        adviser.add("updates_per_interval", updates, predicted, "half the updates a transition", learning=True)
    else:
        why = f"half the updates a transition (with updates_per_interval={updates})"
        adviser.add("update_interval", interval, predicted, why, learning=True, updates_per_interval=updates)


def batch(adviser: Adviser) -> None:
    """Batches twice as large with half as many updates: as many samples are learnt from."""
    knobs, model = adviser.knobs, adviser.model
    size, mini = knobs.get("global_batch_size"), knobs.get("minibatches")
    if size and knobs.get("update_interval"):
        k, u = knobs.get("update_interval"), knobs.get("updates_per_interval")
        half = replace(model, updates=model.updates / 2).with_batch(2 * model.rows)
        why = "twice the batch and half the updates: as many samples, fewer operations"
        also = {"update_interval": 2 * k, "updates_per_interval": u or k}
        adviser.add("global_batch_size", 2 * size, half, why, learning=True, **also)
    why = "half as many mini-batches of twice the size"
    if mini and mini % 2 == 0 and "epochs" in knobs:
        adviser.add("minibatches", mini // 2, model.with_minibatches(0.5), why, learning=True)
    if "minibatch_rows" in knobs:
        rows = knobs.get("minibatch_rows")
        adviser.add("minibatch_rows", 2 * rows, model.with_minibatches(0.5), why, learning=True)


def epochs(adviser: Adviser) -> None:
    """Half the passes over a rollout."""
    passes = adviser.knobs.get("epochs")
    if passes and passes >= 2:
        fewer = replace(adviser.model, updates=adviser.model.updates * (passes // 2) / passes)
        adviser.add("epochs", passes // 2, fewer, "fewer passes over a rollout", learning=True)


LEARNING = (ratio, batch, epochs)
"""Those that the fitted model predicts: asked after `num_envs`, which fits it."""
