"""Presets: settings for a machine as YAML files, in the package and in the user's folder.

`powerband tune` writes one preset per recipe, stage, task and objective. A preset of the objective throughput is for
one algorithm; a preset of the objective score contains the algorithm. Its ``tuned`` section states these, the hardware
and the measurement. The preset is accepted for the same stage and task on the same hardware only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from powerband.core.config.flags import Flag
from powerband.core.errors import ConfigError

PRESETS = Path(__file__).parents[2] / "presets" / "setup"
TUNED = "tuned"
"""``setup=tuned`` selects the preset for throughput of the recipe, task and algorithm. The section ``tuned`` holds no
settings."""
TUNED_SCORE = "tuned-score"
"""``setup=tuned-score`` selects the preset for the time to a score of the recipe and task."""
OBJECTIVES = {TUNED: "throughput", TUNED_SCORE: "score"}
"""Value of ``setup=`` -> objective of the search that wrote the preset."""
HARDWARE = ("cpu", "cores", "gpus")


def user_presets() -> Path:
    """Folder of the user's presets (YAML files with settings for a machine); `powerband tune` writes there."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "powerband" / "setup"


def presets() -> dict[str, Path]:
    """Name -> YAML file of every preset, a set of values for settings that suits a machine.

    A preset in the user's folder replaces the package's preset of the same name.
    """
    return {path.stem: path for folder in (PRESETS, user_presets()) for path in sorted(folder.glob("*.yaml"))}


@dataclass(frozen=True)
class TunedKey:
    """Identifies a preset that ``powerband tune`` writes: recipe, stage, task, algorithm and objective that it is for.

    Attributes:
        recipe: Name of the recipe.
        task: Name of the task; "" for a recipe with one task.
        algo: Algorithm; "" for a recipe with one algorithm.
        option: Option of the recipe that selects the task, such as ``env_id``; "" for a recipe with one task.
        objective: What the search optimised: ``throughput``, or ``score`` for the time to a score.
        stage: Stage of the recipe; "" for its default stage.
    """

    recipe: str
    task: str = ""
    algo: str = ""
    option: str = ""
    objective: str = "throughput"
    stage: str = ""

    @property
    def name(self) -> str:
        """Name of the preset, without characters that are special in paths."""
        task = re.sub(r"[^\w.]+", "-", self.task)
        last = self.objective if self.objective == "score" else self.algo
        return "-".join(filter(None, (TUNED, self.recipe, self.stage, task, last)))

    @property
    def arguments(self) -> str:
        """Command-line arguments of the ``powerband tune`` call that creates this preset."""
        algo = "objective=score" if self.objective == "score" else f"algo={self.algo}" * bool(self.algo)
        return " ".join(filter(None, (self.recipe, self.stage, f"{self.option}={self.task}" * bool(self.task), algo)))

    def header(self) -> dict[str, str]:
        """Entries of the preset's ``tuned`` section by name. `check_tuned_preset` compares them with a run."""
        names = ("recipe", "stage", "task", "algo", "objective")
        return {name: getattr(self, name) for name in names}


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


def check_tuned_preset(header: dict[str, str], path: Path, key: TunedKey) -> str:
    """Checks that a tuned preset is for this recipe, stage, task, algorithm and machine.

    Args:
        header: The ``tuned`` section of the preset, name -> text.
        path: File of the preset, for messages.
        key: Recipe, stage, task and algorithm of this run. An empty algorithm accepts that of the preset.

    Returns:
        A notice for the user with the date of the search and the gain that it measured.

    Raises:
        ConfigError: The preset was measured for another recipe, stage, task or algorithm, or on other hardware.
    """
    again = f"Run powerband tune {key.arguments}, or leave setup= out."
    if key.task and header.get("recipe") == key.recipe and "task" not in header:
        raise ConfigError(f"{path} is from an earlier version, which did not record the task it was tuned for. {again}")
    names = ("recipe", "task", "algo", "stage")  # a preset without a stage is for the default one
    measured = TunedKey(option=key.option, **{name: header.get(name, "") for name in names})
    wanted = replace(key, algo=key.algo or measured.algo, objective=measured.objective)
    if measured != wanted:
        raise ConfigError(f"{path} was tuned for {measured.arguments}, but this run is {wanted.arguments}. {again}")
    here = {name: str(value) for name, value in hardware_fingerprint().items()}
    changed = [
        f"{name}: {header.get(name)} then, {here[name]} now" for name in HARDWARE if header.get(name) != here[name]
    ]
    if changed:
        raise ConfigError(
            f"{path} was measured on other hardware ({'; '.join(changed)}). "
            f"Run powerband tune {header.get('words', key.recipe)} again, or leave setup= out."
        )
    return f"{path.name}: measured {header.get('date')} by powerband tune {header.get('words')}, {header.get('gain')}."
