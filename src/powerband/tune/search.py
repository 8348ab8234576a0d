"""Search: short runs fit the throughput model, the model ranks every setting, the best are verified by running.

The present setting is measured beside them, in turns, and stays where none of them beats it.
"""

from __future__ import annotations

import itertools
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
from powerband.tune.candidates import Candidate, as_words, unlike
from powerband.tune.fitting import Fitting
from powerband.tune.measure import Measurement, Recipe
from powerband.tune.space import Rule, Setting, Space, values_of

LEAST_S, MOST_S = 20.0, 3600.0
BASE_S, VERIFY_S = 2.0, 2.0
"""Seconds of a window: of the run as it stands, of a verification."""
COLD_S = 12.0
"""A first run that takes so much longer than its window was compiling: it is repeated, and the budget begins anew."""
VERIFY_ITERATIONS, LONGEST_VERIFY_S = 3, 5.0
"""A verification holds so many iterations of a slow loop, within this many seconds: one alone is a draw of luck."""
ROUNDS, FIRST_ROUND, LATER_ROUNDS = 5, 5, 3
"""Rounds of verification; settings of the first one, and how many of them go on."""
LEAST_VERIFIED = 2
"""Settings that are verified whatever it takes."""
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
        verified = self.verified(present, sorted(candidates, key=lambda each: -each.predicted))
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

    def verified(self, present: Candidate, ranked: list[Candidate]) -> list[Candidate]:
        """The present setting and the best that the model knows, in turns; after a round the slower ones drop out.

        Another run begins while the budget allows one, but for the first `LEAST_VERIFIED`; a later round has as many of
        the fastest as the budget allows.
        """
        alike = unlike(ranked, LATER_ROUNDS, FIRST_ROUND)
        best, others = alike[:LATER_ROUNDS], alike[LATER_ROUNDS:]
        mixed = [each for pair in itertools.zip_longest(best, others) for each in pair if each is not None]
        # Between one number of ranks and another the model errs most: the best of another one comes second.
        ranks = [each.setting.get("nproc", self.space.facts.world_size) for each in ranked]
        rival = next((each for each, own in zip(ranked, ranks, strict=True) if own != ranks[0]), None)
        if rival is not None:
            mixed = [mixed[0], rival, *(each for each in mixed[1:] if each is not rival)][:FIRST_ROUND]
        chosen = [present, *mixed]
        rates: dict[int, list[float]] = {id(each): [] for each in chosen}
        took: dict[int, float] = {}
        for number in range(ROUNDS):
            for position, each in enumerate(list(chosen)):
                late = self.spent + max(took.values(), default=0.0) / self.options.seconds > 1.0
                if number == 0 and position > LEAST_VERIFIED and late:
                    chosen.remove(each)
                    continue
                began = time.perf_counter()
                seen = self.measure(each.setting, self.verify_s(each))
                took[id(each)] = time.perf_counter() - began
                if seen is not None and seen.facts[0].iterations:
                    rates[id(each)].append(seen.steps_per_s)
                elif each is not present:
                    chosen.remove(each)
            for each in chosen:
                each.rates = rates[id(each)] or each.rates
            fastest = sorted(chosen[1:], key=lambda each: -(each.measured or 0.0))[:LATER_ROUNDS]
            if number == 0:
                seen_once = [present, *fastest]
            chosen = self.affordable([present, *fastest], took)
            if len(chosen) < 2:
                break
        return [each for each in seen_once if each.rates]

    def affordable(self, chosen: list[Candidate], took: dict[int, float]) -> list[Candidate]:
        """The first of `chosen` that can be measured once more within the budget."""
        left, kept = (1 - self.spent) * self.options.seconds, []
        for each in chosen:
            left -= took[id(each)]
            if left < 0:
                break
            kept.append(each)
        return kept
