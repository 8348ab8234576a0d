"""Preset file: writes a tuned preset and the JSON file of its measurements into the user's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from powerband.core.config.presets import TunedKey, user_presets
from powerband.core.config.schema import value_text
from powerband.core.errors import ConfigError
from powerband.core.regular_files import replace_text


def write_preset_file(
    key: TunedKey,
    header: Mapping[str, Any],
    settings: Mapping[str, Any],
    comments: Sequence[str],
    measurements: Mapping[str, Any],
) -> Path:
    """Writes ``NAME.yaml`` and, in the same folder, ``NAME.tuning.json``. Earlier files of the name are replaced.

    Args:
        key: Recipe, task, algorithm and objective of the preset, which determine NAME.
        header: Description of the search by name, written to the section ``tuned`` of the preset.
        settings: Qualified name, such as ``run.nproc``, -> value of the settings of the preset; may be empty.
        comments: Lines at the top of the preset.
        measurements: JSON value to write to ``NAME.tuning.json``.

    Returns:
        Path of the preset.

    Raises:
        ConfigError: The folder is not writable.
    """
    path = user_presets() / f"{key.name}.yaml"
    lines = [f"# {line}" for line in comments]
    lines += ["tuned:", *(f"  {name}: {json.dumps(value)}" for name, value in header.items())]
    sections: dict[str, list[str]] = {}
    for qualified, value in settings.items():
        section, _, name = qualified.rpartition(".")
        sections.setdefault(section, []).append(f"{'  ' * bool(section)}{name}: {_yaml(value)}")
    for section, section_lines in sorted(sections.items()):
        lines += [f"{section}:"] * bool(section) + section_lines
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path.with_suffix(".tuning.json"), json.dumps(measurements, indent=2))
        replace_text(path, "\n".join(lines) + "\n")  # a full disk leaves the earlier preset
    except OSError as error:
        raise ConfigError(
            f"Writing {path} failed ({error.strerror}). Make the folder writable, or set XDG_CONFIG_HOME."
        ) from error
    return path


def _yaml(value: Any) -> str:
    return f"[{value_text(value)}]" if isinstance(value, (tuple, list)) else value_text(value)
