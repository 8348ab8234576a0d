"""Invented runs: measurements of the real configurations with rates that follow a rule."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from powerband.attach.audit.guide.guide_audit import GuideAudit, GuideOptions, GuideResult
from powerband.cli.catalogue import RECIPES, configure, load
from powerband.core.recipe import Recipe
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.in_process import Measurement
from powerband.tune.measure.ledger import Ledger

GUIDES = sorted((Path(__file__).parent / "guides").glob("*.md"))
OFFLINE = ("libero",)
"""Recipes whose runs count updates and no environment steps."""


def value(config: Any, path: str, default: float = 1.0) -> float:
    """A setting of a configuration by its qualified name; `default` if it has none."""
    try:
        return float(attrgetter(path)(config))
    except AttributeError:
        return default


class Runs:
    """Makes invented runs, and remembers what was run.

    Args:
        rate: Function of a configuration that returns its steps per second.
        memory: Function of a configuration that returns its bytes.
    """

    def __init__(self, rate: Callable[[Any], float], memory: Callable[[Any], float] = lambda config: 1e9) -> None:
        self.rate, self.memory = rate, memory
        self.configs: list[Any] = []
        self.recipes: list[str] = []

    def __call__(self, recipe: Recipe, stage: str, config: Any, seconds: float, startup_s: float) -> Measurement | None:
        self.configs.append(config)
        self.recipes.append(recipe.name)
        noise = 1 + 0.01 * (len(self.configs) % 3 - 1)
        steps = int(self.rate(config) * noise * 1000)
        offline = recipe.name in OFFLINE
        counts = {"env_steps": 0 if offline else steps, "grad_steps": steps, "iterations": steps}
        facts = WindowFacts(**counts, precision="fp32", memory_bytes=int(self.memory(config)), num_envs=1)
        return Measurement([Ledger(wall_s=1000.0, seconds={})], [facts], leads=True)


def audited(text: str, runs: Any = None, **options: Any) -> GuideResult:
    """Audits a text with invented runs, or without runs."""
    chosen = GuideOptions(**{"seconds": 60.0 if runs is not None else 0.0, **options})
    recipes = [load(chosen.recipe)] if chosen.recipe else [load(name) for name in RECIPES]
    return GuideAudit(text, chosen, recipes, configure, lambda text, share: None, runs).run()
