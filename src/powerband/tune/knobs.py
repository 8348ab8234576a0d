"""Knobs: reads and changes the settings of a configuration by plain names, such as num_envs without its section."""

from __future__ import annotations

import dataclasses
import math
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

from powerband.core.recipe import Recipe

UNREACHABLE_STEPS = 10**12
"""A budget of environment steps that no measurement reaches."""


@runtime_checkable
class PeriodicSettings(Protocol):
    """Settings of an algorithm whose updates differ from each other, such as SAC that trains its actor less often."""

    @property
    def update_period(self) -> int:
        """Number of updates after which their sequence repeats, such as 2 if every second update trains the actor."""


class Knobs:
    """Settings (knobs) that the chosen algorithm reads, accessed by their names without the section.

    A section is a group of settings in the configuration, such as ``off_policy``.

    Args:
        recipe: Recipe of the configuration; it states which sections each algorithm reads.
        config: Configuration of the run.

    Attributes:
        sections: Names of the sections that the chosen algorithm reads.
        paths: Plain name of each setting -> its qualified name, such as ``num_envs`` -> ``off_policy.num_envs``.
    """

    def __init__(self, recipe: Recipe, config: Any) -> None:
        self.config = config
        algo = recipe.algorithm_of(config)
        sections = [field.name for field in dataclasses.fields(config) if _is_section(getattr(config, field.name))]
        by_algorithm = recipe.sections
        claimed = {name for names in by_algorithm.values() for name in names}
        read = by_algorithm.get(algo, tuple(sections))
        self.sections = [name for name in sections if name in read or name not in claimed]
        self.paths: dict[str, str] = {}
        for field in dataclasses.fields(config):
            if field.name in self.sections:
                for inner in dataclasses.fields(getattr(config, field.name)):
                    self.paths.setdefault(inner.name, f"{field.name}.{inner.name}")
            elif field.name not in sections:
                self.paths[field.name] = field.name
        if "minibatch_rows" in self.paths:  # both settings state the size of a mini-batch, and only one has an effect
            del self.paths["minibatches" if self.get("minibatch_rows") else "minibatch_rows"]

    def __contains__(self, knob: str) -> bool:
        return knob in self.paths

    def get(self, knob: str, default: Any = None) -> Any:
        """Returns the value of a setting, or `default` if the chosen algorithm reads no setting of that name."""
        return attrgetter(self.paths[knob])(self.config) if knob in self.paths else default

    def with_value(self, knob: str, value: Any) -> Any:
        """Returns a copy of the configuration in which the setting `knob` has `value`.

        Raises:
            KeyError: The chosen algorithm reads no setting of that name.
            ConfigError, ValueError: The configuration refuses the value.
        """
        return replaced(self.config, self.paths[knob], value)

    def for_measurement(self, run_dir: str, seconds: float) -> Any:
        """Returns the configuration of a short measured run: a time limit, and fewer steps before the first update.

        Args:
            run_dir: Run folder of the measurement.
            seconds: Time limit of the run.
        """
        config = self.config
        envs = int(self.get("num_envs", 1))
        budget = {"run_dir": run_dir, "resume": "", "time_limit_s": seconds, "env_steps": UNREACHABLE_STEPS}
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, **budget))
        for knob in ("learning_starts", "random_steps"):
            if knob in self:
                config = replaced(config, self.paths[knob], min(int(self.get(knob)), 2 * envs))
        return config

    @property
    def update_period(self) -> int:
        """Number of updates after which the chosen algorithm repeats its sequence of updates; 1 if all are alike."""
        settings = [getattr(self.config, name) for name in self.sections]
        return math.lcm(*(each.update_period for each in settings if isinstance(each, PeriodicSettings)))

    def graph_updates(self, due: int) -> int:
        """Returns the largest valid value of the setting ``graph_updates``, the number of updates in one CUDA graph.

        This is the largest multiple of `update_period` that is not above `due`; 0 if there is none.

        Args:
            due: Number of updates that fall due in one iteration of the training loop.
        """
        return due - due % self.update_period


def _is_section(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def replaced(config: Any, path: str, value: Any) -> Any:
    """Returns a configuration with the setting of a qualified name changed; its dataclass validates the value."""
    section, _, rest = path.partition(".")
    if rest:
        value = replaced(getattr(config, section), rest, value)
    return dataclasses.replace(config, **{section: value})
