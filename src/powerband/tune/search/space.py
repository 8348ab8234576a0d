"""SearchSpace: lists the alternative settings that a search combines, one axis for each subject, such as precision.

A setting is a set of changes to the present configuration: knob (name of a configuration field) -> value. The search
always considers knobs that leave learning unchanged. Knobs that change learning (environments, batch, and with them the
update ratio and the learning rates) change only under a rule that the user chooses:

    fixed           they do not change
    constant-reuse  environments and batch change; the number of samples per collected transition stays the same
    sqrt-lr         as constant-reuse, and learning rates grow with the square root of the batch
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from powerband.core.errors import ConfigError
from powerband.core.machine.device import this_cpu_emulates_bf16
from powerband.core.recipe import Recipe
from powerband.tune.knobs import Knobs
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.search.options import LearningRule

Setting = Mapping[str, Any]
"""Knob -> value, for the knobs that differ from the present setting."""
GROWTH = (0.5, 2, 4, 8)
"""Factors on the number of environments and on the batch size."""


@dataclass(frozen=True)
class Axis:
    """One dimension of a search: mutually exclusive alternatives, such as several precisions.

    Attributes:
        name: Subject of the alternatives, such as ``precision``.
        settings: Alternatives, each a dict of changed knobs -> values, without the present one.
        learning: Whether the alternatives change what is learned.
        modelled: Whether the throughput model predicts the rates of the alternatives; otherwise each is measured.
    """

    name: str
    settings: tuple[Setting, ...]
    learning: bool = False
    modelled: bool = False


class SearchSpace:
    """Alternatives to the present configuration that a search may combine on this machine, grouped into axes.

    An alternative is a setting, which is a set of changed knobs (names of configuration fields): knob -> value.

    Args:
        recipe: Recipe of the configuration.
        config: Present configuration.
        facts: Figures of a short run of the present configuration.
        rule: Rule for knobs that change learning. fixed: they keep their values. constant-reuse: environments and batch
            change. sqrt-lr: as constant-reuse, and learning rates grow with the square root of the batch.
        gpus: Number of GPUs of this machine; with 0, ranks run on the CPU.

    Attributes:
        knobs: Settings of the present configuration by name.
        axes: Axes with at least one alternative.
    """

    def __init__(self, recipe: Recipe, config: Any, facts: WindowFacts, rule: LearningRule, gpus: int = 0) -> None:
        self.recipe, self.config, self.facts, self.rule, self.gpus = recipe, config, facts, rule, gpus
        self.knobs = Knobs(recipe, config)
        axes = [
            self.layout(),
            self.precision(),
            self.overlap(),
            self.double_buffering(),
            self.workers(),
            self.compile_and_graphs(),
        ]
        if rule != "fixed":
            axes += [self.environments(), self.batch()]
        self.axes = [axis for axis in axes if axis.settings]

    def config_with(self, setting: Setting) -> Any:
        """Returns a copy of the present configuration with changed knobs.

        Args:
            setting: Changed knobs -> their values.

        Raises:
            ConfigError, ValueError: The configuration refuses a value, or a size does not divide by the ranks.
        """
        config = self.config
        for knob, value in setting.items():
            config = Knobs(self.recipe, config).with_value(knob, value)
        self.recipe.check_sizes(config, config.run.nproc)
        return config

    def complete(self, alternatives: list[Setting]) -> dict[str, Any] | None:
        """Combines alternatives of different axes into one setting (knob -> value).

        Returns None if the setting is invalid, or if overlap or double buffering has no effect in it, because they
        need worker processes. Under the rule sqrt-lr, the learning rates are multiplied by the square root of the
        growth of the batch.
        """
        setting = {knob: value for part in alternatives for knob, value in part.items()}
        workers = setting.get("num_workers", math.inf)
        if (setting.get("overlap") and workers < 1) or (setting.get("double_buffer") and workers < 2):
            return None
        try:
            config = self.config_with(setting)
            if self.rule == "sqrt-lr":
                growth = self.batch_rows(config) / self.batch_rows(self.config)
                if growth != 1:
                    setting |= {knob: rate * math.sqrt(growth) for knob, rate in self.learning_rates().items()}
        except (ConfigError, ValueError):
            return None
        return setting

    def batch_rows(self, config: Any) -> float:
        """Returns the number of transitions per update over all ranks."""
        knobs = Knobs(self.recipe, config)
        if "global_batch_size" in knobs:
            return float(knobs.get("batch_size_per_rank") * config.run.nproc or knobs.get("global_batch_size"))
        if "minibatch_rows" in knobs:
            return float(knobs.get("minibatch_rows"))
        return knobs.get("num_envs") * knobs.get("num_steps") / knobs.get("minibatches")

    def learning_rates(self) -> dict[str, float]:
        """Returns knob -> value of each learning rate that the chosen algorithm reads."""
        paths = {knob: path for knob, path in self.knobs.paths.items() if knob == "lr" or knob.endswith("_lr")}
        rates = {knob: attrgetter(path)(self.config) for knob, path in paths.items()}
        return {knob: rate for knob, rate in rates.items() if isinstance(rate, float)}

    # -- axes that leave learning unchanged -------------------------------------------------------------------------

    def layout(self) -> Axis:
        """Returns the alternative numbers of ranks and, without a GPU, of threads per rank.

        Numbers of environments and batch sizes are totals over all ranks, so learning is unchanged.
        """
        settings = self.config.run
        if self.gpus:
            counts = [] if settings.gpus not in ("auto", "all") else [2**i for i in range(8) if 2**i <= self.gpus]
            ranks = [{"nproc": count} for count in counts if count != self.facts.world_size]
            return Axis("ranks", tuple(each for each in ranks if self._is_allowed(each)))
        cores = max(self.facts.cores, 1)
        layouts = []
        for ranks in sorted({1, cores, *(2**i for i in range(8) if 2**i < cores)}):
            for threads in sorted({1, cores // ranks}):
                if (ranks, threads) != (self.facts.world_size, self.facts.threads):
                    layouts.append({"nproc": ranks, "threads": threads})
        layouts.sort(key=lambda each: each["nproc"] * each["threads"] != cores)  # layouts that use all cores first
        return Axis("ranks and threads", tuple(each for each in layouts if self._is_allowed(each)))

    def precision(self) -> Axis:
        """Returns the alternative floating point types that this device computes in, without the present one."""
        on_cpu = ["fp32"] if this_cpu_emulates_bf16() else ["fp32", "bf16"]
        names = ["fp32", "bf16", "fp16"] if self.gpus else on_cpu
        now = self.knobs.get("precision")
        return Axis("precision", tuple({"precision": name} for name in names if name != now))

    def overlap(self) -> Axis:
        """Returns an axis with overlap (updates while simulators step); empty if overlap is impossible or on."""
        possible = self.facts.can_overlap and not self.facts.overlap
        return Axis("overlap", ({"overlap": True},) if possible else ())

    def double_buffering(self) -> Axis:
        """Returns an axis with double buffering; empty if it is already on or with fewer than two worker processes.

        With double buffering, the policy acts for one half of the environments while the other half steps.
        """
        off = self.knobs.get("double_buffer") is False
        possible = off and len(self.facts.worker_rows) > 1 and self.facts.overlappable
        return Axis("double buffering", ({"double_buffer": True},) if possible else ())

    def workers(self) -> Axis:
        """Returns the alternative numbers of worker processes per rank; 0 steps simulators in the training process."""
        if "num_workers" not in self.knobs:
            return Axis("workers", ())
        now, cores = len(self.facts.worker_rows), max(self.facts.cores, 1)
        counts = {count for count in (0, 1, cores, 2 * cores) if count <= self.facts.num_envs} - {now}
        return Axis("workers", tuple({"num_workers": count} for count in sorted(counts)))

    def compile_and_graphs(self) -> Axis:
        """Returns an axis with compiled losses and CUDA graphs; empty without a GPU.

        On a CPU, compiled losses are slower for small networks, and CUDA graphs are impossible.
        """
        if not self.gpus:
            return Axis("launches", ())
        settings: list[Setting] = [{"compile": True}] if self.knobs.get("compile") is False else []
        updates = self.knobs.graph_updates(due=self.facts.grad_steps // max(self.facts.iterations, 1))
        if self.knobs.get("graph_updates") == 0 and updates:
            settings.append({"graph_updates": updates})
        return Axis("launches", tuple(settings))

    # -- axes that change learning ----------------------------------------------------------------------------------

    def environments(self) -> Axis:
        """Returns the alternative numbers of environments, without the present one."""
        n = self.knobs.get("num_envs", 0)
        sizes = sorted({int(n * factor) for factor in GROWTH} - {n, 0})
        return Axis("environments", tuple({"num_envs": size} for size in sizes), learning=True, modelled=True)

    def limit_environments(self, axis: Axis, most: int) -> None:
        """Replaces the alternatives with too many environments for the memory by the largest number that fits.

        Args:
            axis: Axis whose alternatives are numbers of environments.
            most: Largest number of environments that fits into memory.
        """
        smaller = [each for each in axis.settings if each["num_envs"] < most]
        last = [{"num_envs": most}] if most != self.knobs.get("num_envs") else []
        self.axes[self.axes.index(axis)] = dataclasses.replace(axis, settings=(*smaller, *last))

    def batch(self) -> Axis:
        """Returns the alternative batch sizes, without the present one.

        The number of updates changes with the batch size, so that each transition is sampled equally often.
        """
        settings: list[Setting] = []
        size, interval = self.knobs.get("global_batch_size"), self.knobs.get("update_interval")
        if size and interval and not self.knobs.get("batch_size_per_rank"):
            updates = self.knobs.get("updates_per_interval") or interval
            for factor in GROWTH:
                ratio = {"update_interval": interval, "updates_per_interval": updates * int(1 / factor)}
                if factor > 1:
                    ratio = {"update_interval": interval * int(factor), "updates_per_interval": updates}
                settings.append({"global_batch_size": int(size * factor), **ratio})
        minibatches, envs = self.knobs.get("minibatches"), self.knobs.get("num_envs", 0)
        if minibatches and not size:
            counts = {int(minibatches / factor) for factor in GROWTH if minibatches / factor >= 1} - {minibatches}
            rows = envs * self.knobs.get("num_steps", 1)
            settings += [{"minibatches": count} for count in sorted(counts) if rows % count == 0]
        if "minibatch_rows" in self.knobs:
            rows = self.knobs.get("minibatch_rows")
            sizes = sorted({int(rows * factor) for factor in GROWTH} - {rows, 0})
            settings += [{"minibatch_rows": size} for size in sizes]
        return Axis("batch", tuple(settings), learning=True, modelled=True)

    def _is_allowed(self, setting: Setting) -> bool:
        try:
            self.config_with(setting)
        except (ConfigError, ValueError):
            return False
        return True


def knob_values(space: SearchSpace, setting: Setting, knobs: list[str]) -> dict[str, Any]:
    """Returns the value of each of `knobs` in the configuration that a setting (changed knobs) produces.

    Knobs that the setting does not change have their present value. Automatic values, such as ``threads=0``, are
    replaced by the values in effect.
    """
    values = {knob: setting.get(knob, space.knobs.get(knob)) for knob in knobs}
    if values.get("threads") == 0:
        values["threads"] = space.facts.threads
    if values.get("num_workers") == -1:
        values["num_workers"] = len(space.facts.worker_rows)
    if values.get("updates_per_interval") == 0:
        values["updates_per_interval"] = values.get("update_interval", space.knobs.get("update_interval"))
    return values


def by_qualified_name(space: SearchSpace, setting: Setting) -> dict[str, Any]:
    """Returns the changed knobs of a setting with their qualified names, such as ``run.nproc``, as keys."""
    paths = Knobs(space.recipe, space.config_with(setting)).paths
    return {paths[knob]: value for knob, value in setting.items()}
