"""Writes the result of a search for the shortest time to a score as a preset file, and formats it for the user."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from powerband.core.config.presets import TunedKey, hardware_fingerprint
from powerband.core.config.schema import value_text
from powerband.core.machine.device import host_facts
from powerband.tune.score.curve import CONSECUTIVE, best_score, time_to_score
from powerband.tune.score.restricted_mean import restricted_mean
from powerband.tune.score.search import ScoreResult
from powerband.tune.score.trials.rungs import SettingResult
from powerband.tune.search.preset_file import write_preset_file

SHOWN = 8
"""Settings in the table of the summary."""


def write_preset(result: ScoreResult, arguments: list[str]) -> Path:
    """Writes the preset ``tuned-RECIPE-TASK-score.yaml`` and its measurements, a file with the suffix ``.tuning.json``.

    The preset contains no settings if none were faster than the present ones.

    Args:
        result: Result of the search.
        arguments: Command line arguments after the recipe and its stage, without the options of the search.

    Returns:
        Path of the preset.

    Raises:
        ConfigError: The folder is not writable.
    """
    space, key = result.space, preset_key(result)
    settings = space.settings(result.chosen) if result.chosen is not None else {}
    header = {
        **key.header(),
        "words": shlex.join(
            [space.recipe.name, *_stage(result), *arguments, "objective=score", f"target={result.goal.target:g}"]
        ),
        "date": time.strftime("%Y-%m-%d"),
        "gain": verdict(result),
        **hardware_fingerprint(),
    }
    comments = [f"powerband train {use(result, arguments)}", *verdict(result).splitlines()]
    chosen = {"algo": key.algo, **settings} if key.algo and settings else settings
    return write_preset_file(key, header, chosen, comments, to_dict(result, header))


def preset_key(result: ScoreResult) -> TunedKey:
    """Returns the recipe, stage, task and algorithm for which the preset of a search is valid."""
    recipe = result.space.recipe
    config = result.space.config(result.chosen if result.chosen is not None else result.present)
    stage = "".join(_stage(result))
    return TunedKey(recipe.name, recipe.task_of(config), recipe.algorithm_of(config), recipe.task, "score", stage)


def use(result: ScoreResult, arguments: list[str], written_out: bool = False) -> str:
    """Returns the arguments of ``powerband train`` that use the settings that a search has chosen.

    Args:
        result: Result of the search.
        arguments: Command line arguments after the recipe and its stage, without the options of the search.
        written_out: True writes every setting as an argument instead of naming the preset. A file of settings
            (``--config``) would override a preset.
    """
    settings = ["setup=tuned-score"]
    if written_out and result.chosen is not None:
        settings = [f"{name}={value_text(value)}" for name, value in result.space.settings(result.chosen).items()]
    return shlex.join([result.space.recipe.name, *_stage(result), *arguments, *settings])


def _stage(result: ScoreResult) -> list[str]:
    """Returns the stage as an argument of ``powerband train``; empty if it is the default."""
    stage = result.space.stage
    return [stage] if stage != result.space.recipe.default_stage else []


def verdict(result: ScoreResult) -> str:
    """States in one or two sentences whether a search found settings that reach the score sooner, with the evidence."""
    score, target, check = result.score, f"{result.goal.target:g}", result.verification
    if not any(time is not None for each in result.settings for time in each.times):
        best = "no evaluation took place"
        if result.best_score is not None:
            best = f"the best evaluation gave {result.best_score:.4g}"
        spent = sum(each.outcome == "ended" for each in result.records)
        raised = "seconds" if spent * 2 <= len(result.records) else "env_steps, which most trials had used up"
        return (
            f"No trial reached {score} {target} in {CONSECUTIVE} successive evaluations; {best}. The present settings "
            f"stay. Lower target, or raise {raised}."
        )
    if check is None:
        return f"No setting was faster to {score} {target} than the present ones, which stay."
    if check.ratio is None:
        return (
            f"A setting looked faster to {score} {target}, but only {len(check.seeds)} fresh seeds of each fitted into "
            f"the budget. The present settings stay. Raise seconds."
        )
    ratio, baseline = check.ratio, restricted_mean(check.baseline, check.budget)
    figures = (
        f"{restricted_mean(check.times, check.budget):.3g} s to {score} {target} instead of {baseline:.3g} s: "
        f"{ratio.value:.2f} times [{ratio.low:.2f}, {ratio.high:.2f}], {len(check.seeds)} fresh seeds of each"
    )
    if result.chosen is None:
        return f"No setting is faster for certain, and the present ones stay; the best took {figures}."
    return f"Training takes {figures}."


def pays_off_after(result: ScoreResult) -> int | None:
    """Returns the number of training runs after which the saved training time exceeds the duration of the search.

    None if the search found no faster settings.
    """
    if result.chosen is None or result.verification is None or result.verification.saved_s <= 0:
        return None
    return math.ceil(result.seconds / result.verification.saved_s)


def setting_text(settings: Mapping[str, Any]) -> str:
    """Formats settings (qualified name -> value) as command line arguments; empty ones as "present settings"."""
    return " ".join(f"{name}={value_text(value)}" for name, value in settings.items()) or "present settings"


def to_dict(result: ScoreResult, header: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of a search as a JSON value.

    Args:
        result: Result of the search.
        header: Entries that the result begins with: how and for what the search was run.

    Returns:
        The header, the target, the chosen settings, their verification, and the importance of each dimension.
        ``settings`` and ``trials`` list all settings and all training runs that were tried.
    """
    goal, check, space = result.goal, result.verification, result.space

    def curve(points: Any) -> list[list[float | None]]:
        return [[p.env_steps, p.seconds, _finite(p.score)] for p in points]

    def row(each: SettingResult) -> dict[str, Any]:
        return {
            "setting": space.settings(each.params),
            "params": dict(each.params),
            "seconds": _finite(each.value),
            "times": each.times,
            "best_score": _finite(each.best_score),
            "steps_per_s": sum(r.env_steps for r in each.records) / max(sum(r.seconds for r in each.records), 1e-9),
        }

    return {
        **header,
        "host": host_facts(),
        "score": result.score,
        "target": goal.target,
        "trial_seconds": goal.budget,
        "best_score": _finite(result.best_score),
        "chosen": None if result.chosen is None else space.settings(result.chosen),
        "verification": None
        if check is None
        else {
            "budget_s": check.budget,
            "seeds": check.seeds,
            "times": check.times,
            "present_times": check.baseline,
            "ratio": None if check.ratio is None else vars(check.ratio),
            "saved_s": check.saved_s if check.seeds else None,
            "messages": check.messages,
        },
        "refused": [
            {"setting": space.settings(params), "seeds": refusal.seeds, "ratio": vars(refusal.ratio)}
            for params, refusal in result.refused
            if refusal.ratio is not None
        ],
        "importances": result.importances,
        "seconds": result.seconds,
        "pays_off_after": pays_off_after(result),
        "study": str(result.folder),
        "settings": [row(each) for each in result.settings],
        "trials": [
            {
                "setting": space.settings(each.params),
                "present": dict(each.params) == dict(result.present),
                "seed": each.seed,
                "rung": each.rung,
                "outcome": each.outcome,
                "message": each.message,
                "time_s": time_to_score(each.curve, goal.target),
                "best_score": _finite(best_score(each.curve)),
                "wall_s": each.wall_s,
                "machine": each.machine,
                "curve": curve(each.curve),
            }
            for each in result.records
        ],
    }


def table(result: ScoreResult) -> str:
    """Formats the result of a search as text for the user; the first line says whether faster settings were found."""
    goal, check = result.goal, result.verification
    lines = [verdict(result), "", f"{'seconds':>9}{'reached':>9}{'best ' + result.score:>14}  setting (search seeds)"]
    for each in result.settings[:SHOWN]:
        reached = f"{sum(time is not None for time in each.times)} of {len(each.times)}"
        setting = setting_text(result.space.settings(each.params))
        lines.append(f"{each.value:>9.4g}{reached:>9}{each.best_score:>14.4g}  {setting}")
    lines.append(f"A trial that does not reach the score counts {goal.budget:.3g} s plus its missing share.")
    if check is not None and check.seeds:
        lines += ["", f"{'seed':>9}{'present':>10}{'best':>10}  seconds, fresh seeds in alternating runs"]
        for seed, now, then in zip(check.seeds, check.baseline, check.times, strict=True):
            lines.append(f"{seed:>9}{_seconds(now, check.budget):>10}{_seconds(then, check.budget):>10}")
    for params, refusal in result.refused:
        if refusal is not check and refusal.ratio is not None:
            ratio, setting = refusal.ratio, setting_text(result.space.settings(params))
            lines.append(
                f"refused after {len(refusal.seeds)} fresh seeds: {ratio.value:.2f} times "
                f"[{ratio.low:.2f}, {ratio.high:.2f}] the time of the present settings: {setting}"
            )
    if result.importances:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in result.importances.items())
        lines += ["", f"importance: {shares}"]
    failed = [each for each in result.records if each.outcome == "failed"]
    lines += ["", f"{len(result.records)} starts of trials, {len(failed)} failed, {result.seconds:.0f} s in all"]
    lines += sorted({f"failed: {setting_text(result.space.settings(e.params))}: {e.message}" for e in failed})
    after = pays_off_after(result)
    if after is not None and check is not None:
        lines.append(f"A run saves {check.saved_s:.3g} s, so the search pays off after {after} runs.")
    return "\n".join(lines)


def _seconds(time_s: float | None, budget: float) -> str:
    return f"> {budget:.3g}" if time_s is None or time_s > budget else f"{time_s:.3g}"


def _finite(value: float | None) -> float | None:
    """Returns `value`, or None if it is infinite or NaN, which JSON cannot express."""
    return value if value is not None and math.isfinite(value) else None
