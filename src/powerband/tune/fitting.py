"""Fitting: short runs that a search makes for its model, and the rates that the model gives all settings.

What grows with environments and with the batch is a line through two runs; every other alternative is run once, and
what it makes of each part of a step is taken for a factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from powerband.core.room import largest_that_fits
from powerband.tune.candidates import Candidate, as_words, key
from powerband.tune.measure import Measurement
from powerband.tune.model import Affine, Throughput, fit
from powerband.tune.parts import changed, seconds_of, total, turned
from powerband.tune.space import Axis, Setting, Space

PROBE_S = 1.0
"""Seconds of a probe's window."""
LEAST_OF_ALONE = 0.7
"""A probe's updates are believed down to this share of what updates by themselves say: one window may be disturbed."""
PROBING = 0.5
"""Share of the budget that is spent on the model; the rest verifies."""


class Fitting:
    """The model of one search.

    Args:
        space: Axes and settings.
        base: The run as it stands.
        measure: (setting, seconds) -> what a short run showed; None where it cannot be had.
        spent: Share of the budget that is spent.
        limit: Bytes that a setting may need, 0 for no limit.

    Attributes:
        probes: What was measured, by `key` of the setting.
        notes: What was not tried, and why.
    """

    def __init__(
        self,
        space: Space,
        base: Measurement,
        measure: Callable[[Setting, float], Measurement | None],
        spent: Callable[[], float],
        limit: int,
    ) -> None:
        self.space, self.base, self.measure, self.spent, self.limit = space, base, measure, spent, limit
        self.probes: dict[tuple, Measurement] = {}
        self.notes: list[str] = []

    def candidates(self) -> list[Candidate]:
        """Probes, then every setting with its predicted rate, and those that were probed with what they showed."""
        model, factors = self.fitted()
        found = self.predicted(model, factors)
        for each in found:
            if key(each.setting) in self.probes:
                each.rates.append(self.probes[key(each.setting)].steps_per_s)
        return found

    def fitted(self) -> tuple[Throughput, dict[tuple, dict[str, float]]]:
        """The model of the present setting, and what each probed alternative makes of each part of it.

        Returns:
            The model; and by `key` of an alternative what `turned` says, with "rest": what its parts do not explain.
        """
        base = self.base
        model = fit(base.ledgers[0], base.facts[0])
        self.bytes = (float(base.facts[0].memory_bytes), 0.0)
        envs = next((axis for axis in self.space.axes if axis.name == "environments"), None)
        if envs is not None:
            model = self.sized(envs, model)
        batch = next((axis for axis in self.space.axes if axis.name == "batch"), None)
        if batch is not None:
            model = self.batched(batch, model)
        overlap, self.comm = self.space.facts.overlap, {base.facts[0].world_size: model.comm}
        self.rest = 1 / (base.steps_per_s * total(seconds_of(model), overlap))
        factors: dict[tuple, dict[str, float]] = {}
        for axis in self.space.axes:
            for setting in () if axis.modelled else axis.settings:
                if self.spent() > PROBING:
                    self.notes.append(f"{as_words(setting)}: not probed, half the budget was spent before.")
                    continue
                seen = self.measure(setting, PROBE_S)
                if seen is None or not seen.facts[0].iterations:
                    continue
                self.probes[key(setting)] = seen
                other = fit(seen.ledgers[0], seen.facts[0])
                self.comm[seen.facts[0].world_size] = other.comm
                before = seconds_of(self.resized(model, setting))
                factor = turned(before, seconds_of(other))
                expected = total(changed(before, [factor]), setting.get("overlap", overlap))
                factors[key(setting)] = {**factor, "rest": 1 / (seen.steps_per_s * expected) / self.rest}
        return model, factors

    def sized(self, envs: Axis, model: Throughput) -> Throughput:
        """The model with what grows with the environments, from a probe with four times as many.

        Where so many do not fit into memory, the most that do are found by bisection and are the last on offer.
        """
        base, n = self.base, self.space.knobs.get("num_envs")
        size = max((each["num_envs"] for each in envs.settings if n < each["num_envs"] <= 4 * n), default=n)
        seen: dict[int, Measurement] = {}

        def fits(size: int) -> bool:
            found = self.measure({"num_envs": size}, PROBE_S)
            if found is not None and found.facts[0].iterations:
                seen[size] = found
            return size in seen

        if size > n and not fits(size):
            step = max(1, n // 4)
            size = largest_that_fits(fits, n + step, size - step, step) or n
            self.space.limit_environments(envs, size)
        if size not in seen:
            return model
        probe, found = {"num_envs": size}, seen[size]
        self.probes[key(probe)] = found
        slope = max(0.0, (found.facts[0].memory_bytes - base.facts[0].memory_bytes) / (size - n))
        self.bytes = (base.facts[0].memory_bytes - slope * n, slope)
        return fit(base.ledgers[0], base.facts[0], (found.ledgers[0], found.facts[0]))

    def batched(self, batch: Axis, model: Throughput) -> Throughput:
        """The model with what an update costs by its rows in the loop itself, from a probe with the largest batch.

        An update by itself, on a batch that lies in the caches, says less of what fewer and larger ones gain.
        """

        def scale(setting: Setting) -> float:
            return self.space.batch_rows(self.space.config_of(setting)) / self.space.batch_rows(self.space.config)

        allowed = [each for each in batch.settings if self.space.complete([each]) is not None]
        largest = max(allowed, key=scale, default=None)
        if largest is None or scale(largest) <= 1:
            return model
        seen = self.measure(largest, PROBE_S)
        if seen is None or not seen.facts[0].grad_steps:
            return model
        self.probes[key(largest)] = seen
        other, rows = fit(seen.ledgers[0], seen.facts[0]), model.rows
        least = LEAST_OF_ALONE * model.update(rows * scale(largest))
        update = Affine.through(rows, model.update(rows), rows * scale(largest), max(least, other.update(other.rows)))
        return replace(model, update=update)

    def predicted(self, model: Throughput, factors: dict[tuple, dict[str, float]]) -> list[Candidate]:
        """Every setting that can be had, fits into memory and is made of alternatives that are known."""
        known = [
            [{}, *(each for each in axis.settings if axis.modelled or key(each) in factors)] for axis in self.space.axes
        ]
        changing = {key(each) for axis in self.space.axes if axis.learning for each in axis.settings}
        found = []
        for combination in itertools.product(*known):
            parts = tuple(part for part in combination if part)
            setting = self.space.complete(list(parts)) if parts else None
            if setting is None or not self.fits(setting):
                continue
            probed = [factors[key(part)] for part in parts if key(part) in factors]
            seconds = changed(seconds_of(self.resized(model, setting)), probed)
            rest = self.rest * math.prod(each["rest"] for each in probed)
            rate = 1 / (total(seconds, setting.get("overlap", self.space.facts.overlap)) * rest)
            found.append(Candidate(setting, parts, rate, learning=any(key(part) in changing for part in parts)))
        return found

    def resized(self, model: Throughput, setting: Setting) -> Throughput:
        """The model at other sizes and shared by other ranks, without the factors of what was probed."""
        space, n = self.space, self.space.knobs.get("num_envs")
        config = space.config_of(setting)
        growth = setting.get("num_envs", n) / n if n else 1.0
        scale = space.batch_rows(config) / space.batch_rows(self.space.config)
        model = model.with_envs(round(model.num_envs * growth))
        if "minibatches" in space.knobs:  # a rollout has as many mini-batches however many environments it is made of
            count = setting.get("minibatches", space.knobs.get("minibatches")) / space.knobs.get("minibatches")
            model = model.with_updates(model.updates / growth * count)
        elif "minibatch_rows" in space.knobs:
            model = model.with_updates(model.updates / scale)
        elif "update_interval" in setting:
            model = model.with_schedule(setting["update_interval"], setting["updates_per_interval"])
        model = model.with_batch(max(1, round(model.rows * scale)))
        now, ranks = space.facts.world_size, setting.get("nproc", space.facts.world_size)
        return model if ranks == now else model.with_ranks(ranks / now, self.comm.get(ranks, model.comm))

    def fits(self, setting: Setting) -> bool:
        """Whether the setting's memory is within the limit, by the line through what was measured."""
        fixed, each = self.bytes
        ranks = setting.get("nproc", self.space.facts.world_size)
        envs = setting.get("num_envs", self.space.knobs.get("num_envs", 0))
        if self.space.gpus:  # each rank has a GPU of its own, and its share of the environments
            return not self.limit or fixed + each * envs / ranks <= self.limit
        return not self.limit or fixed * ranks + each * envs <= self.limit
