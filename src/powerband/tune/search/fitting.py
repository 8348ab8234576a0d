"""ModelFitter: fits the throughput model of a search with short runs and predicts the rates of all settings.

Costs that grow with the environments or the batch are lines through two runs. Every other alternative is run once, and
its effect on each part of an environment step becomes a factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from powerband.core.machine.out_of_memory import largest_that_fits
from powerband.tune.measure.in_process import Measurement
from powerband.tune.predict.model import Affine, ThroughputModel, fit
from powerband.tune.search.candidates import Candidate, as_command_line, key
from powerband.tune.search.env_step_parts import env_step_seconds, part_factors, seconds_by_part, with_factors
from powerband.tune.search.space import Axis, SearchSpace, Setting

PROBE_S = 1.0
"""Length of the window of a probe, in seconds."""
MIN_UPDATE_RATIO = 0.7
"""Smallest credible ratio of the time of an update in a probe to the time of the same update alone; a lower one is
raised to it, because other processes may have disturbed one of the two."""
PROBE_BUDGET = 0.5
"""Share of the budget for fitting the model; the rest is for verification."""


class ModelFitter:
    """Fits the throughput model of one search with probes (short runs), and predicts the rate of every setting.

    A setting is a set of changes to the present configuration: knob (name of a configuration field) -> value.

    Args:
        space: Alternatives that the search combines.
        base: Measurement of the present configuration.
        measure: Function ``(setting, seconds) -> measurement`` that makes a short run; None if that fails.
        spent: Function that returns the used share of the time budget, 0 to 1.
        limit: Largest memory of a run in bytes, per GPU or for all ranks on the CPU; 0 is no limit.

    Attributes:
        probes: Hashable form of a setting (`key`) -> its measurement.
        notes: Alternative settings that were not tried, with reasons.
    """

    def __init__(
        self,
        space: SearchSpace,
        base: Measurement,
        measure: Callable[[Setting, float], Measurement | None],
        spent: Callable[[], float],
        limit: int,
    ) -> None:
        self.space, self.base, self.measure, self.spent, self.limit = space, base, measure, spent, limit
        self.probes: dict[tuple, Measurement] = {}
        self.notes: list[str] = []

    def candidates(self) -> list[Candidate]:
        """Fits the model and returns every valid setting (changed knobs) with its predicted rate.

        Settings that were measured for the fit also have the measured rate.
        """
        model, factors = self.fitted()
        candidates = self.predicted(model, factors)
        for each in candidates:
            if key(each.setting) in self.probes:
                each.rates.append(self.probes[key(each.setting)].steps_per_s)
        return candidates

    def fitted(self) -> tuple[ThroughputModel, dict[tuple, dict[str, float]]]:
        """Fits the model of the present configuration and measures every alternative that the model does not predict.

        Returns:
            The model, and the effects of the measured alternatives. The effects are a dict: `key` of an alternative ->
            factors on the parts of an environment step, as `part_factors` returns them. The additional factor ``rest``
            applies to the whole step, and covers the change that the parts do not explain.
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
        self.rest = 1 / (base.steps_per_s * env_step_seconds(seconds_by_part(model), overlap))
        factors: dict[tuple, dict[str, float]] = {}
        for axis in self.space.axes:
            for setting in () if axis.modelled else axis.settings:
                if self.spent() > PROBE_BUDGET:
                    self.notes.append(
                        f"{as_command_line(setting)}: not probed, because half of the budget was already spent."
                    )
                    continue
                probe = self.measure(setting, PROBE_S)
                if probe is None or not probe.facts[0].iterations:
                    continue
                self.probes[key(setting)] = probe
                other = fit(probe.ledgers[0], probe.facts[0])
                self.comm[probe.facts[0].world_size] = other.comm
                before = seconds_by_part(self.resized(model, setting))
                factor = part_factors(before, seconds_by_part(other))
                expected = env_step_seconds(with_factors(before, [factor]), setting.get("overlap", overlap))
                factors[key(setting)] = {**factor, "rest": 1 / (probe.steps_per_s * expected) / self.rest}
        return model, factors

    def sized(self, envs: Axis, model: ThroughputModel) -> ThroughputModel:
        """Measures a run with up to four times as many environments, and refits the model with it.

        If these do not fit into memory, a bisection finds the largest number that fits, and larger alternatives are
        removed.

        Args:
            envs: Axis whose alternatives are numbers of environments.
            model: Model of the present configuration.

        Returns:
            The refitted model, whose costs depend on the number of environments.
        """
        base, n = self.base, self.space.knobs.get("num_envs")
        size = max((each["num_envs"] for each in envs.settings if n < each["num_envs"] <= 4 * n), default=n)
        measurements: dict[int, Measurement] = {}

        def fits(size: int) -> bool:
            result = self.measure({"num_envs": size}, PROBE_S)
            if result is not None and result.facts[0].iterations:
                measurements[size] = result
            return size in measurements

        if size > n and not fits(size):
            step = max(1, n // 4)
            size = largest_that_fits(fits, n + step, size - step, step) or n
            self.space.limit_environments(envs, size)
        if size not in measurements:
            return model
        probe = self.probes[key({"num_envs": size})] = measurements[size]
        slope = max(0.0, (probe.facts[0].memory_bytes - base.facts[0].memory_bytes) / (size - n))
        self.bytes = (base.facts[0].memory_bytes - slope * n, slope)
        return fit(base.ledgers[0], base.facts[0], (probe.ledgers[0], probe.facts[0]))

    def batched(self, batch: Axis, model: ThroughputModel) -> ThroughputModel:
        """Measures a short run with the largest of the alternative batch sizes, and refits the update time with it.

        Single timed updates, on a batch that stays in the caches, would predict the gain of larger batches less
        accurately.

        Args:
            batch: Axis whose alternatives are batch sizes.
            model: Model of the present configuration.

        Returns:
            The model in which the seconds of an update grow linearly with the transitions of its batch.
        """

        def scale(setting: Setting) -> float:
            return self.space.batch_rows(self.space.config_with(setting)) / self.space.batch_rows(self.space.config)

        allowed = [each for each in batch.settings if self.space.complete([each]) is not None]
        largest = max(allowed, key=scale, default=None)
        if largest is None or scale(largest) <= 1:
            return model
        probe = self.measure(largest, PROBE_S)
        if probe is None or not probe.facts[0].grad_steps:
            return model
        self.probes[key(largest)] = probe
        other, rows = fit(probe.ledgers[0], probe.facts[0]), model.rows
        least = MIN_UPDATE_RATIO * model.update(rows * scale(largest))
        update = Affine.from_points(
            rows, model.update(rows), rows * scale(largest), max(least, other.update(other.rows))
        )
        return replace(model, update=update)

    def predicted(self, model: ThroughputModel, factors: dict[tuple, dict[str, float]]) -> list[Candidate]:
        """Returns every valid setting that fits into memory, with its predicted rate.

        A setting combines alternatives whose rates the model predicts or that were measured.

        Args:
            model: Model of the present configuration.
            factors: `key` of a measured alternative -> its effect on the parts of a step, as `fitted` returns them.
        """
        alternatives: list[list[Setting]] = [
            [{}, *(each for each in axis.settings if axis.modelled or key(each) in factors)] for axis in self.space.axes
        ]
        learning = {key(each) for axis in self.space.axes if axis.learning for each in axis.settings}
        candidates = []
        for combination in itertools.product(*alternatives):
            parts = tuple(part for part in combination if part)
            setting = self.space.complete(list(parts)) if parts else None
            if setting is None or not self.fits(setting):
                continue
            probed = [factors[key(part)] for part in parts if key(part) in factors]
            seconds = with_factors(seconds_by_part(self.resized(model, setting)), probed)
            rest = self.rest * math.prod(each["rest"] for each in probed)
            rate = 1 / (env_step_seconds(seconds, setting.get("overlap", self.space.facts.overlap)) * rest)
            candidates.append(Candidate(setting, parts, rate, learning=any(key(part) in learning for part in parts)))
        return candidates

    def resized(self, model: ThroughputModel, setting: Setting) -> ThroughputModel:
        """Returns the model after the number of environments, batch size, updates and ranks of a setting are applied.

        The effects of measured alternatives, such as another precision, are not included.

        Args:
            model: Model of the present configuration.
            setting: Changed knobs -> their values.
        """
        space, n = self.space, self.space.knobs.get("num_envs")
        config = space.config_with(setting)
        growth = setting.get("num_envs", n) / n if n else 1.0
        scale = space.batch_rows(config) / space.batch_rows(self.space.config)
        model = model.with_envs(round(model.num_envs * growth))
        if "minibatches" in space.knobs:  # their number per rollout does not depend on the environments
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
        """Returns whether the predicted memory of a setting is within the memory limit; true without a limit."""
        fixed, per_env = self.bytes
        ranks = setting.get("nproc", self.space.facts.world_size)
        envs = setting.get("num_envs", self.space.knobs.get("num_envs", 0))
        if self.space.gpus:  # each rank has a separate GPU and a share of the environments
            return not self.limit or fixed + per_env * envs / ranks <= self.limit
        return not self.limit or fixed * ranks + per_env * envs <= self.limit
