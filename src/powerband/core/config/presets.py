"""Presets: settings for a machine as YAML files, in the package and in the user's folder.

`powerband tune` writes one preset per recipe and algorithm. Its ``tuned`` section states the recipe, the hardware and
the measurement; the preset is accepted on that hardware only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from powerband.core.config.flags import Flag
from powerband.core.errors import ConfigError

PRESETS = Path(__file__).parents[2] / "presets" / "setup"
TUNED = "tuned"
"""``setup=tuned`` selects the tuned preset of the recipe and algorithm. The section ``tuned`` holds no settings."""
HARDWARE = ("cpu", "cores", "gpus")


def user_presets() -> Path:
    """Folder of the user's presets (YAML files with settings for a machine); `powerband tune` writes there."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "powerband" / "setup"


def presets() -> dict[str, Path]:
    """Name -> file of every preset. A preset of the user replaces the package's preset of the same name."""
    return {path.stem: path for folder in (PRESETS, user_presets()) for path in sorted(folder.glob("*.yaml"))}


def tuned_name(recipe: str, algo: str) -> str:
    """Name of the tuned preset of a recipe and an algorithm ("" for a recipe with a single algorithm)."""
    return "-".join(filter(None, (TUNED, recipe, algo)))


def hardware_fingerprint() -> dict[str, Any]:
    """The hardware on which throughput depends.

    Returns:
        ``cpu`` (name of the processor), ``cores`` (number) and ``gpus`` (names separated by commas, or "none").
    """
    from powerband.core.machine.device import host_facts

    host = host_facts()
    return {
        "cpu": host["cpu"],
        "cores": host["cores"],
        "gpus": ", ".join(gpu["name"] for gpu in host["gpus"]) or "none",
    }


def split_tuned_section(flags: list[Flag]) -> tuple[list[Flag], dict[str, str]]:
    """Separates the settings of a preset from its ``tuned`` section, which describes the measurement.

    Returns:
        The flags outside of the section, and name -> text of the section.
    """
    prefix = f"{TUNED}."
    header = {flag.name.removeprefix(prefix): str(flag.value) for flag in flags if flag.name.startswith(prefix)}
    return [flag for flag in flags if not flag.name.startswith(prefix)], header


def check_tuned_preset(header: dict[str, str], path: Path, recipe: str, algo: str) -> str:
    """Checks that a tuned preset is for this recipe, this algorithm and this machine.

    Args:
        header: The ``tuned`` section of the preset, name -> text.
        path: File of the preset, for messages.
        recipe: Name of the recipe of this run.
        algo: Algorithm of this run; "" for a recipe with a single algorithm.

    Returns:
        A notice for the user with the date and the gain of the measurement.

    Raises:
        ConfigError: The preset was measured for another recipe or algorithm, or on other hardware.
    """
    if (header.get("recipe"), header.get("algo", "")) != (recipe, algo):
        tuned_for = f"{header.get('recipe')} algo={header.get('algo')}"
        raise ConfigError(
            f"{path} was tuned for {tuned_for}, but this run is {recipe} algo={algo}. "
            f"Run powerband tune {recipe} algo={algo}, or leave setup= out."
        )
    here = {name: str(value) for name, value in hardware_fingerprint().items()}
    changed = [
        f"{name}: {header.get(name)} then, {here[name]} now" for name in HARDWARE if header.get(name) != here[name]
    ]
    if changed:
        raise ConfigError(
            f"{path} was measured on other hardware ({'; '.join(changed)}). "
            f"Run powerband tune {header.get('words', recipe)} again, or leave setup= out."
        )
    return f"{path.name}: measured {header.get('date')} by powerband tune {header.get('words')}, {header.get('gain')}."
