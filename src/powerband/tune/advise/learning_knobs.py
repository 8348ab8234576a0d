"""Advice on settings that change what is learned: environments, update ratio, batch, epochs. It is never applied."""

from __future__ import annotations

from dataclasses import replace

from powerband.tune.advise.adviser import Adviser
from powerband.tune.predict.model import fit

STEPPING_SHARE = 0.15
"""If stepping and acting take at least this share of the wall time, a short run tries more environments."""


def num_envs(adviser: Adviser) -> None:
    """Adds advice on more environments.

    Before that, a short run with four times as many environments refits the throughput model.
    """
    n = adviser.knobs.get("num_envs")
    stepping = adviser.ledger.share("env", "env_wait", "act", "store", "other")
    if not n or adviser.probe is None or stepping < STEPPING_SHARE:
        return
    result = adviser.run_with({"num_envs": 4 * n})
    if result is None or not result.facts[0].iterations:
        return
    model = adviser.model = fit(adviser.ledger, adviser.facts, (result.ledgers[0], result.facts[0]))
    for factor in (2, 4, 8):
        predicted = model.with_envs(factor * model.num_envs)
        why = f"each call steps {factor} times as many environments"
        adviser.add("num_envs", factor * n, predicted, why, learning=True, probed=factor == 4)


def update_ratio(adviser: Adviser) -> None:
    """Adds advice on half the updates per transition.

    If each transition causes one update, it also lists the setting ``update_interval``: a longer interval does not
    help, because more updates are then made at once.
    """
    k, u = adviser.knobs.get("update_interval"), adviser.knobs.get("updates_per_interval")
    if k is None:
        return
    if u in (0, k):
        adviser.add(
            "update_interval",
            10 * k,
            adviser.model,
            "cannot help: as many updates fall due with it (updates_per_interval follows), total work is unchanged",
            always_listed=True,
        )
    due = u or k
    interval, updates = (k, due // 2) if due >= 2 else (2 * k, due)
    predicted = adviser.model.with_schedule(interval, updates)
    why = "half the updates per transition"
    if due >= 2:
        adviser.add("updates_per_interval", updates, predicted, why, learning=True)
    else:
        why += f" (with updates_per_interval={updates})"
        also = {"updates_per_interval": updates}
        adviser.add("update_interval", interval, predicted, why, learning=True, also=also)


def batch_size(adviser: Adviser) -> None:
    """Adds advice on batches twice as large with half as many updates, which keeps the number of samples."""
    knobs, model = adviser.knobs, adviser.model
    size, minibatches = knobs.get("global_batch_size"), knobs.get("minibatches")
    if size and knobs.get("update_interval"):
        k, u = knobs.get("update_interval"), knobs.get("updates_per_interval")
        half = replace(model, updates=model.updates / 2).with_batch(2 * model.rows)
        why = "twice the batch and half the updates: as many samples, fewer operations"
        also = {"update_interval": 2 * k, "updates_per_interval": u or k}
        adviser.add("global_batch_size", 2 * size, half, why, learning=True, also=also)
    why = "half as many mini-batches of twice the size"
    if minibatches and minibatches % 2 == 0 and "epochs" in knobs:
        adviser.add("minibatches", minibatches // 2, model.with_minibatches(0.5), why, learning=True)
    if "minibatch_rows" in knobs:
        rows = knobs.get("minibatch_rows")
        adviser.add("minibatch_rows", 2 * rows, model.with_minibatches(0.5), why, learning=True)


def epochs(adviser: Adviser) -> None:
    """Adds advice on half as many epochs (passes over a rollout)."""
    passes = adviser.knobs.get("epochs")
    if passes and passes >= 2:
        fewer = replace(adviser.model, updates=adviser.model.updates * (passes // 2) / passes)
        adviser.add("epochs", passes // 2, fewer, "fewer passes over a rollout", learning=True)
