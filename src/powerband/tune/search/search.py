"""Search: finds the fastest settings of a recipe on this machine.

Short runs fit the throughput model, the model predicts the rate of every setting, and the best settings are verified in
alternating runs. The present setting takes part in the verification and is chosen if no other is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from powerband.core.errors import ConfigError
from powerband.core.machine import memory
from powerband.core.machine.device import device_names
from powerband.core.machine.out_of_memory import OutOfMemory, out_of_memory_message
from powerband.core.recipe import Recipe
from powerband.tune.advise.advice import MIN_GAIN
from powerband.tune.measure.in_process import Measurement, with_measured_precision
from powerband.tune.measure.in_subprocesses import short_run
from powerband.tune.search.candidates import Candidate, as_command_line
from powerband.tune.search.fitting import ModelFitter
from powerband.tune.search.options import SearchOptions
from powerband.tune.search.score_comparison import ScoreComparison
from powerband.tune.search.space import SearchSpace, Setting, knob_values
from powerband.tune.search.verification import Verification

BASE_S, VERIFY_S = 2.0, 2.0
"""Length of a window in seconds: for the first run of the present setting, and for a verification."""
COLD_S = 12.0
"""A first run that exceeds its window by more seconds has compiled code: it is repeated and the budget starts again."""
VERIFY_ITERATIONS, LONGEST_VERIFY_S = 3, 5.0
"""Iterations of a slow loop in the window of a verification, and its longest duration in seconds; a single iteration
would be too noisy."""
MEMORY_SHARE = 0.9
"""Share of the free memory that a setting may use if the user sets no limit."""


@dataclass(frozen=True)
class TuningResult:
    """Result of a search for the fastest settings.

    Attributes:
        space: Alternative settings that the search combined.
        best: Chosen setting (changed knobs); the present one if no other is faster.
        baseline: Present setting, without changes.
        verified: Settings that were verified in alternating runs, the present one first.
        candidates: All settings, the fastest first.
        notes: Remarks, such as settings that were not tried, with reasons.
        seconds: Duration of the search.
        comparison: Scores with the fastest setting and with the present one, if the fastest changes learning and its
            score was measured.
        stage: Name of the recipe's stage that was measured; "" for its default stage.
    """

    space: SearchSpace
    best: Candidate
    baseline: Candidate
    verified: list[Candidate]
    candidates: list[Candidate]
    notes: list[str]
    seconds: float
    comparison: ScoreComparison | None = None
    stage: str = ""

    @property
    def gain(self) -> float:
        """Measured rate of the best setting divided by that of the present setting."""
        return self.best.measured / self.baseline.measured

    @property
    def knobs(self) -> list[str]:
        """Names of the settings that at least one candidate changes."""
        return list(dict.fromkeys(knob for each in self.candidates for knob in each.setting))

    def rows(self, most: int = 96) -> list[dict[str, Any]]:
        """Returns the rates of settings, for a heat map: all measured settings, then those with the best predictions.

        Args:
            most: Largest number of rows, unless more settings were measured.

        Returns:
            One dict per setting: {"knobs": knob -> value, "steps_per_s": measured rate, or predicted if there is none,
            "predicted_steps_per_s": predicted rate, "measured": whether it was measured, "rates": rate of each run,
            "changes_learning": whether the setting changes what is learned}.
        """
        measured = [each for each in self.candidates if each.rates]
        predicted = [each for each in self.candidates if not each.rates][: max(0, most - len(measured))]
        return [
            {
                "knobs": knob_values(self.space, each.setting, self.knobs),
                "steps_per_s": each.measured if each.rates else each.predicted,
                "predicted_steps_per_s": each.predicted,
                "measured": bool(each.rates),
                "rates": each.rates,
                "changes_learning": each.learning,
            }
            for each in measured + predicted
        ]


class Search:
    """Search for the settings with the most environment steps per second; `run` performs it.

    Args:
        recipe: Recipe to tune.
        stage: Name of the stage (function of the recipe) to run, such as ``train``.
        config: Present configuration.
        options: Options of the search, such as its time budget and memory limit.
        progress: Called with the name of each step and the share of the budget that is spent, 0 to 1.
    """

    def __init__(
        self, recipe: Recipe, stage: str, config: Any, options: SearchOptions, progress: Callable[[str, float], object]
    ) -> None:
        self.recipe, self.stage, self.config, self.options, self.progress = recipe, stage, config, options, progress
        self.started = time.perf_counter()
        self.notes: list[str] = []
        self.limit = int(options.memory_gib * 2**30)

    def run(self) -> TuningResult:
        """Fits the throughput model, predicts the rate of every setting and verifies the best settings.

        Raises:
            ConfigError: The present setting cannot be measured.
        """
        base = self.measure({}, BASE_S, probe=True)
        if time.perf_counter() - self.started > BASE_S + COLD_S:  # it compiled for the first time, which happens once
            self.started = time.perf_counter()
            base = self.measure({}, BASE_S, probe=True)
        if base is None or not base.facts[0].iterations:
            raise ConfigError(
                f"Nothing was measured in {BASE_S:g} s: the run ended early, or an iteration takes longer. Remove the "
                f"setting that ends the run early, or lower num_envs or num_steps."
            )
        self.config = with_measured_precision(self.config, base)
        device = device_names(self.config.run)[0]
        gpus = 0 if device == "cpu" else torch.cuda.device_count()
        free = memory.free(device)
        if not self.limit and free is not None:
            self.limit = int(MEMORY_SHARE * (free + base.facts[0].memory_bytes))
        self.space = SearchSpace(self.recipe, self.config, base.facts[0], self.options.learning, gpus)
        fitter = ModelFitter(self.space, base, self.measure, lambda: self.spent, self.limit)
        candidates = fitter.candidates()
        self.notes += fitter.notes
        baseline = Candidate({}, (), base.steps_per_s, [base.steps_per_s])
        sizes = frozenset(
            knob for axis in self.space.axes if axis.modelled for setting in axis.settings for knob in setting
        )
        verification = Verification(self.rate, lambda: (1 - self.spent) * self.options.seconds, sizes)
        verified = verification.verified(baseline, candidates)
        # Only alternating runs are compared: the load of the machine may differ between the windows of the probes. A
        # setting with fewer runs than the present one is excluded, because a single run is too noisy.
        repeated = [each for each in verified if len(each.rates) >= len(baseline.rates)]
        best = preferred(repeated, baseline)
        ranked = sorted([baseline, *candidates], key=lambda each: -(each.measured or each.predicted))
        self.progress("done", 1.0)
        seconds = time.perf_counter() - self.started
        return TuningResult(self.space, best, baseline, verified, ranked, self.notes, seconds, stage=self.stage)

    # -- measuring --------------------------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """Used share of the time budget, 0 to 1; above 1 if the search takes longer."""
        return (time.perf_counter() - self.started) / self.options.seconds

    def measure(self, setting: Setting, seconds: float, probe: bool = False) -> Measurement | None:
        """Measures a setting in a short run; None if it is invalid, runs out of memory, or its run ends too early.

        Args:
            setting: Changed knobs -> their values; empty measures the present configuration.
            seconds: Length of the measured part of the run.
            probe: Also time single updates after the measured part.
        """
        name = as_command_line(setting)
        self.progress(name, min(1.0, self.spent))
        try:
            config = self.space.config_with(setting) if setting else self.config
        except ValueError as error:  # also a ConfigError, such as sizes that do not divide by the ranks
            self.notes.append(f"{name}: refused ({str(error).rstrip('. ')}).")
            return None
        try:
            return short_run(self.recipe, self.stage, config, seconds, probe)
        except (RuntimeError, MemoryError, ConfigError) as error:
            if isinstance(error, ConfigError) and not isinstance(error, OutOfMemory) and setting:
                self.notes.append(f"{name}: refused ({str(error).rstrip('. ')}).")
                return None
            if not isinstance(error, OutOfMemory) and not out_of_memory_message(error):
                raise
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.notes.append(f"{name}: does not fit into memory.")
            return None

    # -- verifying --------------------------------------------------------------------------------------------------

    def verify_s(self, candidate: Candidate) -> float:
        """Returns how many seconds a verification run of a candidate lasts, from its predicted time per iteration."""
        facts, n = self.space.facts, self.space.knobs.get("num_envs")
        steps = facts.env_steps / facts.iterations * (candidate.setting.get("num_envs", n) / n if n else 1.0)
        return min(LONGEST_VERIFY_S, max(VERIFY_S, VERIFY_ITERATIONS * steps / candidate.predicted))

    def rate(self, candidate: Candidate) -> float | None:
        """Measures a candidate in a short run and returns its environment steps per second; None if that fails."""
        result = self.measure(candidate.setting, self.verify_s(candidate))
        return result.steps_per_s if result is not None and result.facts[0].iterations else None


def preferred(verified: list[Candidate], baseline: Candidate) -> Candidate:
    """Returns the setting to choose: the fastest, unless its advantage is below 3 %.

    A setting that changes learning must also be 3 % faster than the best choice that does not.

    Args:
        verified: Settings that were measured in alternating runs, `baseline` included.
        baseline: Present setting, which is returned if no other is fast enough.
    """
    best = baseline
    for learning in (False, True):
        fastest = max(
            (each for each in verified if each.learning == learning), key=lambda each: each.measured, default=best
        )
        if fastest.measured >= MIN_GAIN * best.measured:
            best = fastest
    return best
