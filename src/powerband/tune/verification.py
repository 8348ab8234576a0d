"""Verification: the settings that promise most are run one after the other, then the fastest of them in turns.

What a run gives corrects what settings like it promise: the model is fitted to short probes of one knob at a time, and
knobs that are turned together are where it errs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from powerband.tune.candidates import Candidate, key

LEAST_TRIED = 2
"""Settings that are run whatever it takes, beside the present one."""
TURNS, IN_TURNS = 5, 3
"""Rounds in turns at most, the first run included; settings that take part, beside the present one."""
SHARED_ERROR = 0.5
"""Share of the (logarithm of the) error of those that were run that settings unlike them are taken to have too."""


class Verification:
    """Runs settings within what is left of a budget.

    Args:
        run: (candidate) -> env steps a second; None where it cannot be measured.
        left: () -> seconds that are left of the budget.
        sizes: Knobs that the model knows a law of; settings that are the same in all others are alike.
    """

    def __init__(
        self, run: Callable[[Candidate], float | None], left: Callable[[], float], sizes: frozenset[str]
    ) -> None:
        self.run, self.left, self.sizes = run, left, sizes
        self.rates: dict[int, list[float]] = {}
        self.took: dict[int, float] = {}
        self.errors: dict[tuple, list[float]] = {}

    def verified(self, present: Candidate, candidates: list[Candidate]) -> list[Candidate]:
        """Those that were run, `present` first; `rates` of each are those of its turns."""
        probed = {id(each): each.measured for each in candidates if each.rates}
        self.turn(present)
        waiting, tried = list(candidates), [present]
        fastest_probe = max((each for each in candidates if each.rates), key=lambda each: each.measured, default=None)
        while waiting:
            # What was predicted comes first, then what was seen; afterwards whichever promises more.
            seen = len(tried) == 2 and fastest_probe in waiting and fastest_probe.measured > present.measured
            each = fastest_probe if seen else max(waiting, key=lambda each: self.promise(each, probed))
            if len(tried) > LEAST_TRIED:
                best = max(one.measured for one in tried)
                if not self.affords([each, *self.fastest(tried)]) or self.promise(each, probed) < best:
                    break
            waiting.remove(each)
            if self.turn(each):
                tried.append(each)
                if each.predicted > 0:
                    self.errors.setdefault(self.kind(each), []).append(math.log(each.measured / each.predicted))
        for _ in range(TURNS - 1):
            chosen = self.fastest(tried)
            if len(chosen) < 2 or not self.affords(chosen[:2]):
                break
            for number, each in enumerate(chosen):
                if number < 2 or self.affords([each]):
                    self.turn(each)
        return tried

    def promise(self, each: Candidate, probed: dict[int, float]) -> float:
        """What is expected of a setting, steps a second: what its probe gave, or what is predicted, corrected."""
        if id(each) in probed:
            return probed[id(each)]
        own, every = self.errors.get(self.kind(each)), [error for errors in self.errors.values() for error in errors]
        if own:
            return each.predicted * math.exp(sum(own) / len(own))
        return each.predicted * math.exp(SHARED_ERROR * sum(every) / max(len(every), 1))

    def kind(self, each: Candidate) -> tuple:
        """What settings that are alike have in common."""
        return key({knob: value for knob, value in each.setting.items() if knob not in self.sizes})

    def fastest(self, tried: list[Candidate]) -> list[Candidate]:
        """The present setting and the fastest others."""
        return [tried[0], *sorted(tried[1:], key=lambda each: -each.measured)[:IN_TURNS]]

    def affords(self, chosen: list[Candidate]) -> bool:
        """Whether one run of each fits into what is left; one that was never run takes as long as the longest."""
        longest = max(self.took.values(), default=0.0)
        return sum(self.took.get(id(each), longest) for each in chosen) <= self.left()

    def turn(self, each: Candidate) -> bool:
        """Runs it once more; False where nothing was measured."""
        began = time.perf_counter()
        rate = self.run(each)
        self.took[id(each)] = time.perf_counter() - began
        if rate is None:
            return False
        self.rates.setdefault(id(each), []).append(rate)
        each.rates = self.rates[id(each)]
        return True
