"""Presets: settings for a machine as YAML files, in the package and in the user's folder.

Those that `powerband tune` writes, one a recipe and algorithm, have a ``tuned`` section that says for what, where and
how they were measured, and are accepted on that hardware only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from powerband.core.config.flags import Flag
from powerband.core.errors import ConfigError

PRESETS = Path(__file__).parents[2] / "presets" / "setup"
TUNED = "tuned"
"""``setup=tuned`` means the preset of the recipe and algorithm at hand; the section of this name is no setting."""
HARDWARE = ("cpu", "cores", "gpus")


def user_presets() -> Path:
    """The user's folder of presets, where `tune` writes."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "powerband" / "setup"


def presets() -> dict[str, Path]:
    """Hardware presets by name; the user's folder comes before the package's."""
    return {path.stem: path for folder in (PRESETS, user_presets()) for path in sorted(folder.glob("*.yaml"))}


def tuned_name(recipe: str, algo: str) -> str:
    """Name of the preset of a recipe and an algorithm ("" where the recipe has none)."""
    return "-".join(filter(None, (TUNED, recipe, algo)))


def hardware_fingerprint() -> dict[str, Any]:
    """The hardware that throughput depends on: processor, cores, GPUs."""
    from powerband.core.machine.device import host_facts

    host = host_facts()
    return {
        "cpu": host["cpu"],
        "cores": host["cores"],
        "gpus": ", ".join(gpu["name"] for gpu in host["gpus"]) or "none",
    }


def split(flags: list[Flag]) -> tuple[list[Flag], dict[str, str]]:
    """(settings, the ``tuned`` section) of a preset's flags."""
    prefix = f"{TUNED}."
    header = {flag.name.removeprefix(prefix): str(flag.value) for flag in flags if flag.name.startswith(prefix)}
    return [flag for flag in flags if not flag.name.startswith(prefix)], header


def check_tuned_preset(header: dict[str, str], path: Path, recipe: str, algo: str) -> str:
    """Checks that a tuned preset is for this recipe, this algorithm and this machine.

    Returns:
        What the user should be told about it.

    Raises:
        ConfigError: It was measured for something else, or on other hardware.
    """
    again = f"Write powerband tune {header.get('words', recipe)}, or leave it out."
    if (header.get("recipe"), header.get("algo", "")) != (recipe, algo):
        meant = f"{header.get('recipe')} algo={header.get('algo')}"
        raise ConfigError(
            f"{path} was tuned for {meant}, and this is {recipe} algo={algo}. "
            f"Write powerband tune {recipe} algo={algo}, or leave it out."
        )
    here = {name: str(value) for name, value in hardware_fingerprint().items()}
    other = [f"{name} {header.get(name)} then, {here[name]} now" for name in HARDWARE if header.get(name) != here[name]]
    if other:
        raise ConfigError(
            f"{path} was measured on other hardware ({'; '.join(other)}): its settings are stale. {again}"
        )
    return f"{path.name}: measured {header.get('date')} by powerband tune {header.get('words')}, {header.get('gain')}."
