"""Verification: runs the most promising settings once each, then the fastest of them in alternating rounds.

Each result corrects the expected rates of similar settings. The model is fitted to short probes of one knob at a time,
and its errors are largest for combinations of knobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from powerband.tune.search.candidates import Candidate, key

MIN_TRIED = 2
"""Number of settings that are run regardless of the budget, in addition to the present one."""
MAX_ROUNDS, MAX_FINALISTS = 5, 3
"""Largest number of runs per setting, and of settings in the rounds in addition to the present one."""
SHARED_ERROR = 0.5
"""The prediction of a setting that resembles no measured setting is corrected by this share of the mean logarithmic
error of all measured settings."""


class Verification:
    """Measures the most promising settings of a search, repeatedly and within its remaining time budget.

    Args:
        run: Function that measures the environment steps per second of a candidate; None if that fails.
        seconds_left: Function that returns the remaining seconds of the budget.
        sizes: Knobs whose effect the throughput model computes, such as ``num_envs``. Settings that are equal in all
            other knobs count as similar.
    """

    def __init__(
        self, run: Callable[[Candidate], float | None], seconds_left: Callable[[], float], sizes: frozenset[str]
    ) -> None:
        self.run, self.seconds_left, self.sizes = run, seconds_left, sizes
        self.rates: dict[int, list[float]] = {}
        self.durations_s: dict[int, float] = {}
        self.errors: dict[tuple, list[float]] = {}

    def verified(self, baseline: Candidate, candidates: list[Candidate]) -> list[Candidate]:
        """Measures the most promising candidates.

        Args:
            baseline: Present setting, which is always measured.
            candidates: All other settings, with predicted rates and the rates of earlier probes (short runs).

        Returns:
            The candidates that were run, `baseline` first; their `rates` are replaced by those of the verification.
        """
        probed = {id(each): each.measured for each in candidates if each.rates}
        self.measure_once(baseline)
        waiting, tried = list(candidates), [baseline]
        fastest_probe = max((each for each in candidates if each.rates), key=lambda each: each.measured, default=None)
        while waiting:
            # The best prediction is first, the fastest probe second, and then the highest expected rate of either kind.
            each = max(waiting, key=lambda each: self.expected_rate(each, probed))
            if len(tried) == 2 and fastest_probe in waiting and fastest_probe.measured > baseline.measured:
                each = fastest_probe
            if len(tried) > MIN_TRIED:
                best = max(other.measured for other in tried)
                if not self.fits_budget([each, *self.fastest(tried)]) or self.expected_rate(each, probed) < best:
                    break
            waiting.remove(each)
            if self.measure_once(each):
                tried.append(each)
                if each.predicted > 0:
                    self.errors.setdefault(self.kind(each), []).append(math.log(each.measured / each.predicted))
        for _ in range(MAX_ROUNDS - 1):
            finalists = self.fastest(tried)
            if len(finalists) < 2 or not self.fits_budget(finalists[:2]):
                break
            for number, each in enumerate(finalists):
                if number < 2 or self.fits_budget([each]):
                    self.measure_once(each)
        return tried

    def expected_rate(self, candidate: Candidate, probed: dict[int, float]) -> float:
        """Returns the expected environment steps per second of a candidate.

        This is the rate of its probe, an earlier short run. Without a probe it is the predicted rate, corrected by the
        errors of the predictions for candidates that were already run.

        Args:
            candidate: Candidate that was not run yet.
            probed: ``id()`` of each candidate with a probe -> rate of the probe.
        """
        if id(candidate) in probed:
            return probed[id(candidate)]
        similar = self.errors.get(self.kind(candidate))
        if similar:
            return candidate.predicted * math.exp(sum(similar) / len(similar))
        errors = [error for group in self.errors.values() for error in group]
        return candidate.predicted * math.exp(SHARED_ERROR * sum(errors) / max(len(errors), 1))

    def kind(self, candidate: Candidate) -> tuple:
        """Returns a key that is equal for similar candidates, which have equal knobs apart from `sizes`."""
        return key({knob: value for knob, value in candidate.setting.items() if knob not in self.sizes})

    def fastest(self, tried: list[Candidate]) -> list[Candidate]:
        """Returns the baseline, then up to three other candidates, the fastest first.

        Args:
            tried: Candidates that were run, the baseline first.
        """
        return [tried[0], *sorted(tried[1:], key=lambda each: -each.measured)[:MAX_FINALISTS]]

    def fits_budget(self, candidates: list[Candidate]) -> bool:
        """Returns whether the remaining time allows one more run of each candidate.

        A candidate that was not run yet is expected to take as long as the longest run so far.
        """
        longest = max(self.durations_s.values(), default=0.0)
        return sum(self.durations_s.get(id(each), longest) for each in candidates) <= self.seconds_left()

    def measure_once(self, candidate: Candidate) -> bool:
        """Runs a candidate once more and adds the rate to `candidate.rates`; returns False if nothing was measured."""
        began = time.perf_counter()
        rate = self.run(candidate)
        self.durations_s[id(candidate)] = time.perf_counter() - began
        if rate is None:
            return False
        self.rates.setdefault(id(candidate), []).append(rate)
        candidate.rates = self.rates[id(candidate)]
        return True
