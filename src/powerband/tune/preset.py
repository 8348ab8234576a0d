"""Preset: what a search found as files in the user's folder: settings, all measurements, a page with the map."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from powerband.core.config import ConfigError
from powerband.core.device import host_facts
from powerband.core.presets import fingerprint, tuned_name, user_presets
from powerband.core.schema import value_text
from powerband.core.words import take_named
from powerband.tune.candidates import Candidate, as_words
from powerband.tune.search import Tuned
from powerband.tune.space import as_paths


def write_preset(found: Tuned, recipe: str, words: list[str]) -> Path:
    """Writes ``tuned-RECIPE-ALGO.yaml``, and beside it ``tuned-RECIPE-ALGO.tuning.json`` with every measurement.

    Args:
        found: Of the search.
        recipe: Name of the recipe.
        words: What was typed after it, without the options of the search.

    Raises:
        ConfigError: The folder cannot be written.
    """
    settings = as_paths(found.space, found.best.setting)
    header = header_of(found, recipe, words)
    path = user_presets() / f"{tuned_name(recipe, header['algo'])}.yaml"
    lines = [
        f"# powerband train {' '.join([recipe, *kept_words(found, words)])} setup=tuned",
        "# Measured in turns, env steps/s:",
    ]
    lines += [f"#   {each.measured:>12,.0f}  {as_words(each.setting)}" for each in found.verified]
    lines += ["tuned:", *(f"  {name}: {json.dumps(value)}" for name, value in header.items())]
    sections: dict[str, list[str]] = {}
    for qualified, value in settings.items():
        section, _, name = qualified.rpartition(".")
        sections.setdefault(section, []).append(f"{'  ' * bool(section)}{name}: {value_text(value)}")
    for section, settings in sections.items():
        lines += [f"{section}:"] * bool(section) + settings
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        path.with_suffix(".tuning.json").write_text(json.dumps(to_dict(found, header), indent=2), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}). Make the folder writable, or set XDG_CONFIG_HOME to another."
        ) from error
    return path


def kept_words(found: Tuned, words: list[str]) -> list[str]:
    """What is typed with ``setup=tuned``: `words` without those that the preset sets, which would win over it."""
    recipe, paths = found.space.recipe, as_paths(found.space, found.best.setting)
    old = {name for name, new in recipe.RENAMED.items() if (new if isinstance(new, str) else new[0]) in paths}
    names = {*old, *paths, *(path.rpartition(".")[2] for path in paths)}
    return take_named(words, (*names, *(name.replace("_", "-") for name in names)))[1]


def header_of(found: Tuned, recipe: str, words: list[str]) -> dict[str, Any]:
    """For what, where and how it was measured: what `accept` asks for, and what a reader wants to know."""
    return {
        "recipe": recipe,
        "algo": getattr(found.space.config, "algo", ""),
        "words": " ".join([recipe, *words]),
        "date": time.strftime("%Y-%m-%d"),
        "learning": found.space.rule,
        "gain": f"{found.gain:.2f} times the {found.present.measured:,.0f} env steps/s without it",
        **fingerprint(),
    }


def to_dict(found: Tuned, header: dict[str, Any]) -> dict[str, Any]:
    """As JSON: the choice, what was verified, and the rows of the map."""

    def row(each: Candidate) -> dict[str, Any]:
        return {
            "setting": dict(each.setting),
            "predicted_steps_per_s": each.predicted,
            "steps_per_s": each.measured,
            "rates": each.rates,
            "changes_learning": each.learning,
        }

    return {
        **header,
        "host": host_facts(),
        "seconds": found.seconds,
        "best": row(found.best),
        "present": row(found.present),
        "gain_measured": found.gain,
        "verified": [row(each) for each in found.verified],
        "rows": found.rows(),
        "notes": found.notes,
    }


def table(found: Tuned) -> str:
    """What the user reads: those that were verified, in turns, and what was chosen."""
    lines = [f"{'measured':>12}{'predicted':>12}{'gain':>8}  setting (env steps/s, measured in turns)"]
    base = found.present.measured
    for each in sorted(found.verified, key=lambda each: -each.measured):
        figures = f"{each.measured:>12,.0f}{each.predicted:>12,.0f}{each.measured / base:>7.2f}x"
        lines.append(f"{figures}  {as_words(each.setting)}{' (changes learning)' * each.learning}")
    others = [each for each in found.candidates if each not in found.verified][:8]
    lines += ["", "others, the fastest first (m measured once, p predicted):"] if others else []
    for each in others:
        rate, how = (each.measured, "m") if each.rates else (each.predicted, "p")
        lines.append(f"{rate:>12,.0f} {how}{rate / base:>17.2f}x  {as_words(each.setting)}")
    lines += ["", *(f"note: {note}" for note in found.notes)] if found.notes else []
    known = sum(bool(each.rates) for each in found.candidates)
    counts = f"{len(found.candidates)} settings, {known} of them run"
    lines += ["", f"{counts}, {found.seconds:.0f} s; learning={found.space.rule}"]
    return "\n".join(lines)
