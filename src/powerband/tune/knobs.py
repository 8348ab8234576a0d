"""Knobs: the settings that change throughput, found by name in whatever configuration a recipe has."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import Any

ENDLESS = 10**12
"""A budget of environment steps that no profile reaches."""


class Knobs:
    """The settings of a configuration that the running algorithm reads, by their plain names.

    Args:
        recipe: The recipe's module: its ``SECTIONS`` say which sections an algorithm reads.
        config: The whole configuration.
    """

    def __init__(self, recipe: Any, config: Any) -> None:
        self.config = config
        algo = getattr(config, "algo", None)
        sections = [field.name for field in dataclasses.fields(config) if _is_section(getattr(config, field.name))]
        named = getattr(recipe, "SECTIONS", None) or {}
        every = {name for names in named.values() for name in names}
        read = named.get(algo, tuple(sections))
        self.sections = [name for name in sections if name in read or name not in every]
        self.places: dict[str, str] = {}
        for field in dataclasses.fields(config):
            if field.name in self.sections:
                for inner in dataclasses.fields(getattr(config, field.name)):
                    self.places.setdefault(inner.name, f"{field.name}.{inner.name}")
            elif field.name not in sections:
                self.places[field.name] = field.name
        if "minibatch_rows" in self.places:  # two ways to say one size: the other has no effect
            del self.places["minibatches" if self.get("minibatch_rows") else "minibatch_rows"]

    def __contains__(self, knob: str) -> bool:
        return knob in self.places

    def get(self, knob: str, default: Any = None) -> Any:
        """The value of a knob; `default` where the configuration has no such name."""
        return attrgetter(self.places[knob])(self.config) if knob in self.places else default

    def turned(self, knob: str, value: Any) -> Any:
        """The configuration with one knob changed; validated by its dataclass like any other."""
        return _replaced(self.config, self.places[knob].split("."), value)

    def shortened(self, run_dir: str, seconds: float) -> Any:
        """The configuration as it is measured: a folder of its own, a time limit, no warm-up that adds no knowledge."""
        config = self.config
        envs = int(self.get("num_envs", 1))
        budget = {"run_dir": run_dir, "resume": "", "time_limit_s": seconds, "env_steps": ENDLESS}
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, **budget))
        for knob in ("warmup", "random_steps"):
            if knob in self:
                config = _replaced(config, self.places[knob].split("."), min(int(self.get(knob)), 2 * envs))
        return config


def _is_section(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _replaced(config: Any, path: list[str], value: Any) -> Any:
    if len(path) > 1:
        value = _replaced(getattr(config, path[0]), path[1:], value)
    return dataclasses.replace(config, **{path[0]: value})
