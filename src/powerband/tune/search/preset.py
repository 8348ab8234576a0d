"""Preset: writes the result of a search into the user's folder, as a preset file and a JSON file of measurements."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from powerband.core.config.command_line import split_named_options
from powerband.core.config.presets import TunedKey, hardware_fingerprint
from powerband.core.machine.device import host_facts
from powerband.tune.search.candidates import Candidate, as_command_line
from powerband.tune.search.preset_file import write_preset_file
from powerband.tune.search.score_comparison import learning_sentence
from powerband.tune.search.search import TuningResult
from powerband.tune.search.space import by_qualified_name


def write_preset(result: TuningResult, recipe: str, arguments: list[str]) -> Path:
    """Writes ``tuned-RECIPE-TASK-ALGO.yaml`` and, in the same folder, ``tuned-RECIPE-TASK-ALGO.tuning.json``.

    Args:
        result: Result of the search.
        recipe: Name of the recipe.
        arguments: Command line arguments after the recipe, without the options of the search.

    Returns:
        Path of the preset.

    Raises:
        ConfigError: The folder is not writable.
    """
    header = preset_header(result, recipe, arguments)
    learning = learning_sentence(result.comparison, result.best.learning)
    comments = [
        *filter(None, [learning]),
        f"powerband train {shlex.join([recipe, *remaining_arguments(result, arguments)])} setup=tuned",
        "Measured in alternating runs, env steps/s:",
        *(f"  {each.measured:>12,.0f}  {as_command_line(each.setting)}" for each in result.verified),
    ]
    settings = by_qualified_name(result.space, result.best.setting)
    return write_preset_file(preset_key(result, recipe), header, settings, comments, to_dict(result, header))


def remaining_arguments(result: TuningResult, arguments: list[str]) -> list[str]:
    """Returns the arguments of the search that a user still has to write in addition to ``setup=tuned``.

    Arguments whose option the preset contains are left out, because they would override the preset.

    Args:
        result: Result of the search.
        arguments: Command line arguments after the recipe, without the options of the search.
    """
    recipe, paths = result.space.recipe, by_qualified_name(result.space, result.best.setting)
    old = {name for name, new in recipe.old_names.items() if (new if isinstance(new, str) else new[0]) in paths}
    names = {*old, *paths, *(path.rpartition(".")[2] for path in paths)}
    return split_named_options(arguments, (*names, *(name.replace("_", "-") for name in names)))[1]


def preset_header(result: TuningResult, recipe: str, arguments: list[str]) -> dict[str, Any]:
    """Returns the description of a preset: how it was found, and for which recipe, task, algorithm and machine.

    A run that uses the preset compares this description with its own task and machine.

    Args:
        result: Result of the search.
        recipe: Name of the recipe.
        arguments: Command line arguments after the recipe, without the options of the search.
    """
    rates = f"{result.gain:.2f} times the {result.baseline.measured:,.0f} env steps/s without it"
    return {
        **preset_key(result, recipe).header(),
        "words": shlex.join([recipe, *arguments]),
        "date": time.strftime("%Y-%m-%d"),
        "learning": result.space.rule,
        "gain": " ".join(filter(None, [learning_sentence(result.comparison, result.best.learning), rates])),
        **hardware_fingerprint(),
    }


def preset_key(result: TuningResult, recipe: str) -> TunedKey:
    """Returns the recipe, stage, task and algorithm for which the preset of a search is valid."""
    definition, config = result.space.recipe, result.space.config
    stage = "" if result.stage == definition.default_stage else result.stage
    return TunedKey(recipe, definition.task_of(config), definition.algorithm_of(config), definition.task, stage=stage)


def to_dict(result: TuningResult, header: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a search as a JSON value.

    It contains the header, the chosen and the present setting, the verified settings, and the rates of all settings.

    Args:
        result: Result of the search.
        header: Result of `preset_header`.
    """

    def row(each: Candidate) -> dict[str, Any]:
        return {
            "setting": dict(each.setting),
            "predicted_steps_per_s": each.predicted,
            "steps_per_s": each.measured if each.rates else None,
            "rates": each.rates,
            "changes_learning": each.learning,
        }

    return {
        **header,
        "host": host_facts(),
        "seconds": result.seconds,
        "best": row(result.best),
        "present": row(result.baseline),
        "gain_measured": result.gain,
        "learning_sentence": learning_sentence(result.comparison, any(each.learning for each in result.candidates)),
        "scores": result.comparison.to_dict() if result.comparison is not None else None,
        "verified": [row(each) for each in result.verified],
        "rows": result.rows(),
        "notes": result.notes,
    }


def table(result: TuningResult) -> str:
    """Formats the result of a search as text for the user.

    The text lists the verified settings, the best of the other settings, and notes. If a setting changes what is
    learned, the first line states whether its score was measured; such settings come last.
    """
    others = [each for each in result.candidates if each not in result.verified][:8]
    changing = any(each.learning for each in [*result.verified, *others])
    lines = list(filter(None, [learning_sentence(result.comparison, changing)]))
    lines.append(f"{'measured':>12}{'predicted':>12}{'gain':>8}  setting (env steps/s, measured in alternating runs)")
    base = result.baseline.measured
    for each in sorted(result.verified, key=lambda each: (each.learning, -each.measured)):
        figures = f"{each.measured:>12,.0f}{each.predicted:>12,.0f}{each.measured / base:>7.2f}x"
        lines.append(f"{figures}  {as_command_line(each.setting)}{' (changes learning)' * each.learning}")
    lines += ["", "others, the fastest first (m: measured once, p: predicted):"] if others else []
    for each in sorted(others, key=lambda each: each.learning):
        rate, source = (each.measured, "m") if each.rates else (each.predicted, "p")
        lines.append(f"{rate:>12,.0f} {source}{rate / base:>17.2f}x  {as_command_line(each.setting)}")
    lines += ["", *(f"note: {note}" for note in result.notes)] if result.notes else []
    measured = sum(bool(each.rates) for each in result.candidates)
    counts = f"{len(result.candidates)} settings, {measured} of them measured"
    lines += ["", f"{counts}, {result.seconds:.0f} s; learning={result.space.rule}"]
    return "\n".join(lines)
