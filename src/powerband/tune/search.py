"""Search: short runs fit the throughput model, the model ranks every setting, the best are verified by running.

The present setting is measured beside them, in turns, and stays where none of them beats it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from powerband.core import memory
from powerband.core.config import ConfigError
from powerband.core.device import device_names
from powerband.core.room import OutOfRoom, ran_out
from powerband.tune.advice import WORTH
from powerband.tune.apart import short_run
from powerband.tune.candidates import Candidate, as_words
from powerband.tune.fitting import Fitting
from powerband.tune.measure import Measurement, Recipe, as_measured
from powerband.tune.space import Rule, Setting, Space, values_of
from powerband.tune.verification import Verification

LEAST_S, MOST_S = 20.0, 3600.0
BASE_S, VERIFY_S = 2.0, 2.0
"""Seconds of a window: of the run as it stands, of a verification."""
COLD_S = 12.0
"""A first run that takes so much longer than its window was compiling: it is repeated, and the budget begins anew."""
VERIFY_ITERATIONS, LONGEST_VERIFY_S = 3, 5.0
"""A verification holds so many iterations of a slow loop, within this many seconds: one alone is a draw of luck."""
MEMORY_SHARE = 0.9
"""Of the free memory, where no limit is given."""


@dataclass(frozen=True)
class Options:
    """What `powerband tune` can be told beside the settings of the recipe."""

    seconds: float = 60.0
    """Budget of the search without a first compile; a probe that has begun is finished."""
    learning: Rule = "fixed"
    """fixed moves nothing that changes learning; constant-reuse moves environments and batch; sqrt-lr the rates too."""
    memory_gib: float = 0.0
    """Memory that a setting may need, of one GPU or of all processor ranks; 0 is nine tenths of what is free now."""

    def __post_init__(self) -> None:
        if not LEAST_S <= self.seconds <= MOST_S:
            raise ConfigError(
                f"seconds={self.seconds:g} is outside {LEAST_S:g} to {MOST_S:g}: a search needs some probes and some "
                f"verifications. Write seconds=60."
            )
        if self.memory_gib < 0:
            raise ConfigError(f"memory_gib={self.memory_gib:g} is below 0. Write memory_gib=8, or 0 for what is free.")


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        space: What it chose from.
        best: The chosen setting; the present one where nothing beats it.
        present: The setting as it stood.
        verified: Those that were run side by side, the present one first.
        candidates: All, the fastest first.
        notes: What was not tried, and why.
        seconds: What the search took.
    """

    space: Space
    best: Candidate
    present: Candidate
    verified: list[Candidate]
    candidates: list[Candidate]
    notes: list[str]
    seconds: float

    @property
    def gain(self) -> float:
        """Measured rate of the best over that of the present setting."""
        return self.best.measured / self.present.measured

    @property
    def knobs(self) -> list[str]:
        """Knobs that any candidate turns."""
        return list(dict.fromkeys(knob for each in self.candidates for knob in each.setting))

    def rows(self, most: int = 96) -> list[dict[str, Any]]:
        """Measured settings, and the best of those that were only predicted: the tuning map."""
        known = [each for each in self.candidates if each.rates]
        rest = [each for each in self.candidates if not each.rates][: max(0, most - len(known))]
        return [
            {
                "knobs": values_of(self.space, each.setting, self.knobs),
                "steps_per_s": each.measured if each.rates else each.predicted,
                "predicted_steps_per_s": each.predicted,
                "measured": bool(each.rates),
                "rates": each.rates,
                "changes_learning": each.learning,
            }
            for each in known + rest
        ]


class Search:
    """One search.

    Args:
        recipe, stage, config: What is tuned.
        options: Budget and rule.
        progress: Told what is done and the share of the budget that is spent, 0 to 1.
    """

    def __init__(
        self, recipe: Recipe, stage: str, config: Any, options: Options, progress: Callable[[str, float], object]
    ) -> None:
        self.recipe, self.stage, self.config, self.options, self.progress = recipe, stage, config, options, progress
        self.started = time.perf_counter()
        self.notes: list[str] = []
        self.limit = int(options.memory_gib * 2**30)

    def run(self) -> Tuned:
        """Probes, predicts, verifies.

        Raises:
            ConfigError: The run as it stands cannot be measured.
        """
        base = self.measure({}, BASE_S, probe=True)
        if time.perf_counter() - self.started > BASE_S + COLD_S:  # compiled for the first time, which comes once
            self.started = time.perf_counter()
            base = self.measure({}, BASE_S, probe=True)
        if base is None or not base.facts[0].iterations:
            raise ConfigError(
                f"nothing could be measured in {BASE_S:g} s of this run: an iteration takes longer, or it ended. Take "
                f"the limit out of the settings, or make its iterations smaller."
            )
        self.config = as_measured(self.config, base)
        device = device_names(self.config.run)[0]
        gpus = 0 if device == "cpu" else torch.cuda.device_count()
        free = memory.free(device)
        if not self.limit and free is not None:
            self.limit = int(MEMORY_SHARE * (free + base.facts[0].memory_bytes))
        self.space = Space(self.recipe, self.config, base.facts[0], self.options.learning, gpus)
        fitting = Fitting(self.space, base, self.measure, lambda: self.spent, self.limit)
        candidates = fitting.candidates()
        self.notes += fitting.notes
        present = Candidate({}, (), base.steps_per_s, [base.steps_per_s])
        sizes = frozenset(
            knob for axis in self.space.axes if axis.modelled for setting in axis.settings for knob in setting
        )
        verification = Verification(self.rate, lambda: (1 - self.spent) * self.options.seconds, sizes)
        verified = verification.verified(present, candidates)
        # The windows of the probes are short and apart in time: only those taken in turns are compared.
        often = [each for each in verified if len(each.rates) >= len(present.rates)]  # one good turn is luck
        best = max(often, key=lambda each: each.measured)
        best = best if best.measured >= WORTH * present.measured else present
        ranked = sorted([present, *candidates], key=lambda each: -(each.measured or each.predicted))
        self.progress("done", 1.0)
        return Tuned(self.space, best, present, verified, ranked, self.notes, time.perf_counter() - self.started)

    # -- measuring --------------------------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """Share of the budget."""
        return (time.perf_counter() - self.started) / self.options.seconds

    def measure(self, setting: Setting, seconds: float, probe: bool = False) -> Measurement | None:
        """A short run with `setting`; None where it does not fit into memory or ended before it could be measured."""
        named = as_words(setting)
        self.progress(named, min(1.0, self.spent))
        config = self.space.config_of(setting) if setting else self.config
        try:
            return short_run(self.recipe, self.stage, config, seconds, probe)
        except (RuntimeError, MemoryError, ConfigError) as error:
            if isinstance(error, ConfigError) and not isinstance(error, OutOfRoom) and setting:
                self.notes.append(f"{named}: refused ({error})")
                return None
            if not isinstance(error, OutOfRoom) and not ran_out(error):
                raise
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.notes.append(f"{named}: does not fit into memory.")
            return None

    # -- verifying --------------------------------------------------------------------------------------------------

    def verify_s(self, each: Candidate) -> float:
        """Seconds of a verification of `each`, by the iterations that it is predicted to do."""
        facts, n = self.space.facts, self.space.knobs.get("num_envs")
        steps = facts.env_steps / facts.iterations * (each.setting.get("num_envs", n) / n if n else 1.0)
        return min(LONGEST_VERIFY_S, max(VERIFY_S, VERIFY_ITERATIONS * steps / each.predicted))

    def rate(self, each: Candidate) -> float | None:
        """Env steps a second of one verification; None where it ended before it could be measured."""
        seen = self.measure(each.setting, self.verify_s(each))
        return seen.steps_per_s if seen is not None and seen.facts[0].iterations else None
