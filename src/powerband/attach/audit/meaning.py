"""Meaning: compares the name of an option with what it was measured to do."""

from __future__ import annotations

import re
from typing import Any

from powerband.attach.audit.comparison import environments, fingerprint, learning_processes, single_steps, total
from powerband.attach.audit.options import ScriptOption
from powerband.attach.audit.short_run import ShortRun
from powerband.attach.audit.texts import Wording

ENVIRONMENTS = re.compile(
    r"^(num|n|number_of|parallel)?_?(parallel_)?env(ironment)?s$|^num_envs_per|^n_envs$|^num_actors$"
)
UPDATE_INTERVAL = re.compile(r"^(update|train|learn|learning|gradient)_?(interval|every|freq|frequency|period)$")
BATCH = re.compile(r"^(train_)?(mini)?_?batch_?size$|^bs$|^mini_batch_size$")
WORKERS = re.compile(r"^(num|n)_?(workers|processes|procs)$")
TOTAL_STEPS = re.compile(r"^(total_?)(env_)?(time)?_?steps$|^total_frames$")
RATIO_MARGIN = 0.1
"""Largest relative difference of two equal rates of updates, which the end of a run can cause."""


def misnamed(
    option: ScriptOption,
    base: ShortRun,
    runs: list[tuple[Any, ShortRun]],
    effect: bool,
    say: Wording,
) -> tuple[str, str] | None:
    """Returns (verdict, evidence) of an option that does something else than its name says, or None.

    Args:
        option: The option.
        base: An unchanged run.
        runs: Pairs of a tried value and its run.
        effect: Whether a value has an effect.
        say: Texts.
    """
    name, value = option.last_name, option.value
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    runs = [(v, run) for v, run in runs if isinstance(v, int)]
    if UPDATE_INTERVAL.search(name):
        return _interval(value, base, runs, say)
    if ENVIRONMENTS.search(name):
        return _environments(option, base, runs, effect, say)
    if BATCH.search(name):
        return _batch(value, base, runs, say)
    if WORKERS.search(name):
        return _workers(value, base, runs, say)
    if TOTAL_STEPS.search(name):
        return _total(value, runs, say)
    return None


def _interval(value: int, base: ShortRun, runs: list[tuple[int, ShortRun]], say: Wording) -> tuple[str, str] | None:
    rates = [(v, _update_rate(run), fingerprint(run).get("events")) for v, run in runs]
    before, events = _update_rate(base), fingerprint(base).get("events")
    if not rates or not before or any(not rate for _, rate, _ in rates):
        return None
    if any(abs(rate / before - 1) > RATIO_MARGIN for _, rate, _ in rates if rate):
        return None
    changed = next(((v, rate) for v, rate, other in rates if (other or [])[1:-1][:4] != (events or [])[1:-1][:4]), None)
    if changed is None:
        return None
    change = f"{value} → {changed[0]}"
    return "no-effect", say("interval", change=change, before=before, after=changed[1])


def _update_rate(run: ShortRun) -> float:
    """Updates per environment step, from the end of the first updates to the end of the last ones.

    The steps before the first update (`learning_starts`) do not count. A cycle is the environment steps and the updates
    that follow them; 0 if there are fewer than two cycles.
    """
    events: list[Any] = next((facts["events"] for facts in learning_processes(run)), [])
    while events and events[-1][0] != "u":
        events = events[:-1]
    first = next((index for index, (letter, _) in enumerate(events) if letter == "u"), None)
    if first is None or run.stopped and len(events) < first + 5:
        return 0.0
    later = events[first + 1 :] if not run.stopped else events[first + 1 : -2]
    steps = sum(n for letter, n in later if letter == "e")
    return sum(n for letter, n in later if letter == "u") / steps if steps else 0.0


def _environments(
    option: ScriptOption, base: ShortRun, runs: list[tuple[int, ShortRun]], effect: bool, say: Wording
) -> tuple[str, str] | None:
    number = environments(base)
    if not number or not runs or not effect:
        return None
    if all(environments(run) == number for _, run in runs):
        tried = ", ".join(str(v) for v, _ in runs)
        place = say("read_at", place=option.reads[0]) if option.reads else ""
        changes = f"{option.value} → {tried}"
        return "misnamed", say("environments_bits", changes=changes, number=number, read=place)
    v, run = runs[-1]
    if environments(run) not in (v, 0) and number != option.value and environments(run) * option.value != v * number:
        change = f"{option.value} → {v}"
        return "misnamed", say("environment_count", change=change, before=number, after=environments(run))
    return None


def _batch(value: int, base: ShortRun, runs: list[tuple[int, ShortRun]], say: Wording) -> tuple[str, str] | None:
    before, ranks = _rows(base), fingerprint(base)["ranks"]
    for v, run in runs:
        after = _rows(run)
        if not before or not after or before == after:
            continue
        changed, now = before - after, after - before
        if value in before and v in after:
            if ranks > 1:
                return "misnamed", say("batch_ranks", value=value, ranks=ranks, rows=value * ranks)
            return None
        for rows in sorted(changed, reverse=True):
            factor = rows / value
            if rows != value and round(factor * v) in now:
                return "misnamed", say(
                    "batch", change=f"{value} → {v}", before=rows, after=round(factor * v), factor=factor
                )
    return None


def _rows(run: ShortRun) -> set[int]:
    """Sizes of the batches with gradients."""
    facts: dict[str, Any] = next(iter(learning_processes(run)), {"values": {}})
    return {int(key.split()[1]) for key in facts["values"].get("rows", {}) if key.startswith("learning")}


def _workers(value: int, base: ShortRun, runs: list[tuple[int, ShortRun]], say: Wording) -> tuple[str, str] | None:
    for v, run in runs:
        before, after = total(base, "threads"), total(run, "threads")
        if len(run.records) == len(base.records) and (after - before) * (v - value) > 0:
            return "misnamed", say("threads", change=f"{value} → {v}", before=before, after=after)
    return None


def _total(value: int, runs: list[tuple[int, ShortRun]], say: Wording) -> tuple[str, str] | None:
    for v, run in runs:
        steps = single_steps(run)
        if not run.stopped and v > 4 and steps >= 2 * v and steps % v == 0:
            return "misnamed", say("total", change=f"{value} → {v}", steps=steps, factor=steps / v)
    return None
