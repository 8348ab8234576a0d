"""Pairs: short runs of a recipe with and without one option of a guide, in alternating order, within a budget."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from powerband.attach.audit.guide.comparison import MAX_PAIRS, MIN_PAIRS, Comparison, Pair, Sample
from powerband.attach.audit.guide.resolution import GuideRecipe
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.recipe import Recipe
from powerband.tune.knobs import Knobs
from powerband.tune.measure.in_process import Measurement
from powerband.tune.measure.in_subprocesses import measure_in_subprocesses

MIN_WINDOW_S, MAX_WINDOW_S = 1.5, 30.0
INTERVALS_IN_WINDOW = 8
"""Update intervals that a window contains at least, because updates come in bursts."""
STARTUP_S = 20.0
"""Seconds that the first run may take to start, whatever the budget."""
SMALL_VARIANT = "smoke"
"""Variant of a recipe that is measured if its default is too slow for the budget."""

Run = Callable[[Recipe, str, Any, float, float], Measurement | None]
"""(recipe, stage, configuration, seconds of the window, further seconds) -> measurement."""


class PairMeter:
    """Measures pairs within a budget.

    Args:
        guide: Recipe of the guide.
        seconds: Budget of all runs in seconds.
        progress: Function of a text and the spent share of the budget.
        run: Function that makes one short run.
    """

    def __init__(
        self,
        guide: GuideRecipe,
        seconds: float,
        progress: Callable[[str, float], None],
        run: Run = measure_in_subprocesses,
    ) -> None:
        self.guide, self.seconds, self.progress, self.run = guide, seconds, progress, run
        self.began = time.monotonic()
        self.runs = 0
        self._precision = self._variant = ""
        self._run_s = self._rate = 0.0
        self._started = False

    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.seconds - (time.monotonic() - self.began)

    def measure(
        self, pairs: list[Pair], found: dict[Pair, Comparison], decided: Callable[[Pair, Comparison], bool]
    ) -> None:
        """Measures pairs in their order: all of them `MIN_PAIRS` times first, then again while the budget lasts.

        Args:
            pairs: What to compare, the most claimed first.
            found: Receives the comparisons. It is complete up to the present run if Ctrl-C ends the measurement.
            decided: Function that tells whether the claims about a pair need no more runs.
        """
        for pair in pairs:
            found[pair] = self._first(pair)
        for rounds in (MIN_PAIRS, MAX_PAIRS):
            for pair in pairs:
                comparison = found[pair]
                while not comparison.problem and comparison.pairs < rounds and not decided(pair, comparison):
                    if not self._one_more(comparison):
                        break

    def configs(self, pair: Pair, variant: str) -> tuple[Any, Any, str]:
        """Returns the configurations without and with the option, and the stage.

        Raises:
            ConfigError: The configuration refuses the option.
        """
        chosen = [f"variant={variant}"] if variant else []
        found = []
        for words in (pair.before, pair.after):
            result = self.guide.resolved([*pair.stage_words, *chosen, *words])
            if result.config is None:
                raise ConfigError(result.message)
            config = result.config
            if imported := [name for names in self.guide.recipe.imports_of(config).values() for name in names]:
                raise ConfigError(
                    f"{shortened(imported[0])} names a module, whose import runs its code. An audit imports no module "
                    f"that a guide names. Run powerband train {self.guide.recipe.name} yourself."
                )
            if self._precision and pair.path != "run.precision":
                config = replace(config, run=replace(config.run, precision=self._precision))
            found.append(config)
        return found[0], found[1], result.stage

    def _first(self, pair: Pair) -> Comparison:
        """Checks the values of a pair without a run."""
        comparison = Comparison(pair)
        try:
            before, after, _ = self.configs(pair, "")
        except ConfigError as error:
            return replace(comparison, problem="refused", message=str(error))
        comparison.values = (attrgetter(pair.path)(before), attrgetter(pair.path)(after))
        if comparison.values[0] == comparison.values[1]:
            comparison.problem = "same"
        return comparison

    def _one_more(self, comparison: Comparison) -> bool:
        """Runs one more pair; returns False if the budget or a problem prevents it."""
        if not self._started and not self._warm_up(comparison):
            return False
        samples: dict[bool, Sample] = {}
        for with_option in (False, True) if comparison.pairs % 2 == 0 else (True, False):
            sample = self._sample(comparison, with_option, self._variant) if self.left_s() > self._run_s else None
            if sample is None:
                return False
            samples[with_option] = sample
        comparison.variant = self._variant
        comparison.before.append(samples[False])
        comparison.after.append(samples[True])
        return True

    def _warm_up(self, comparison: Comparison) -> bool:
        """Makes one run that is not counted: it fills caches, and shows whether the recipe's default is fast enough."""
        for variant in ("", SMALL_VARIANT):
            if variant and variant not in self.guide.recipe.variants:
                break
            sample = self._sample(comparison, False, variant) if self.left_s() > MIN_WINDOW_S else None
            if sample is not None:
                self._variant, self._started, self._rate = variant, True, sample.rate
                comparison.problem = comparison.message = ""
                return True
        return False

    def _sample(self, comparison: Comparison, with_option: bool, variant: str) -> Sample | None:
        """Makes one run; None if it fails, with the reason in `comparison`."""
        before, after, stage = self.configs(comparison.pair, variant)
        config = after if with_option else before
        window = self._window_s(comparison, before, after)
        patience = self.seconds / (3 if self._started or variant else 6)
        most = min(max(STARTUP_S, patience), max(self.left_s() - window, 0.0))
        words = comparison.pair.after if with_option else comparison.pair.before
        self.progress(" ".join(words), 1 - self.left_s() / self.seconds)
        self.runs += 1
        started = time.monotonic()
        try:
            measured = self.run(self.guide.recipe, stage, config, window, most)
        except (ConfigError, MemoryError) as error:
            slow = "not done after" in str(error)
            spent = slow and self._started and self.left_s() < MIN_WINDOW_S  # the budget ended, not the patience
            comparison.problem, comparison.message = "" if spent else "slow" if slow else "failed", str(error)
            return None
        if measured is None:
            comparison.problem = "failed"
            return None
        self._run_s = time.monotonic() - started
        return self._figures(measured, config)

    def _window_s(self, comparison: Comparison, *configs: Any) -> float:
        """Length of the window, equal for both sides of a pair: it contains several of the longer update intervals."""
        shortest = min(max(MIN_WINDOW_S, self.seconds / 150), 4.0)
        interval = max(Knobs(self.guide.recipe, config).get("update_interval", 0) for config in configs)
        rates = [each.rate for each in (*comparison.before, *comparison.after)] or [self._rate or math.inf]
        needed = INTERVALS_IN_WINDOW * interval / statistics.fmean(rates)
        return min(max(shortest, needed), MAX_WINDOW_S, max(MIN_WINDOW_S, self.left_s() / 4))

    def _figures(self, measured: Measurement, config: Any) -> Sample:
        facts, seconds = measured.facts[0], max(measured.ledgers[0].wall_s, 1e-9)
        if not self._precision and config.run.precision == "auto":
            self._precision = facts.precision
        steps: float = facts.env_steps or facts.grad_steps
        workers = sum(len(each.worker_rows) for each in measured.facts)
        per_step = facts.grad_steps / facts.env_steps if facts.env_steps else None
        knobs = Knobs(self.guide.recipe, config)
        if per_step is not None and (interval := knobs.get("update_interval", 0)):
            exact = (knobs.get("updates_per_interval", 0) or interval) / interval
            most = knobs.get("num_envs", 1) + interval
            if abs(per_step - exact) <= exact * (most / facts.env_steps + 0.05):
                # A window that begins or ends inside an interval has too few or too many steps for its updates.
                per_step, steps = exact, (steps + facts.grad_steps / exact) / 2
        return Sample(
            steps / seconds,
            facts.grad_steps / seconds,
            per_step,
            facts.grad_steps,
            facts.env_steps,
            sum(each.memory_bytes for each in measured.facts),
            len(measured.facts) + workers,
        )
