"""Space: the settings a search chooses from, as axes. A setting is a few knobs; none of them is the run as it stands.

Knobs that leave learning alone are free. Those that change it (environments, batch, and with them the update ratio and
the learning rate) move only under a declared rule:

    fixed           they do not move
    constant-reuse  environments and batch move; the samples that are learnt from, for each transition collected, stay
    sqrt-lr         as constant-reuse, and learning rates grow with the square root of the batch
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from powerband.core.config import ConfigError
from powerband.tune.facts import Facts
from powerband.tune.knobs import Knobs

Rule = Literal["fixed", "constant-reuse", "sqrt-lr"]
Setting = Mapping[str, Any]
GROWTH = (0.5, 2, 4, 8)
"""Factors on environments and on the batch that a rule may choose from."""


@dataclass(frozen=True)
class Axis:
    """Alternatives of which at most one is chosen.

    Attributes:
        name: What they are about.
        settings: The alternatives; the present setting is not among them.
        learning: They change what is learnt.
        modelled: Their rates follow from the throughput model; else each is probed by a short run.
    """

    name: str
    settings: tuple[Setting, ...]
    learning: bool = False
    modelled: bool = False


class Space:
    """Axes of one configuration on this machine.

    Args:
        recipe: The recipe's module.
        config: The configuration as it stands.
        facts: What a short run of it showed.
        rule: What may change learning.
        gpus: GPUs of this machine; 0 lays out processor ranks.
    """

    def __init__(self, recipe: Any, config: Any, facts: Facts, rule: Rule, gpus: int = 0) -> None:
        self.recipe, self.config, self.facts, self.rule, self.gpus = recipe, config, facts, rule, gpus
        self.knobs = Knobs(recipe, config)
        axes = [self.layout(), self.precision(), self.overlap(), self.turns(), self.workers(), self.launches()]
        if rule != "fixed":
            axes += [self.environments(), self.batch()]
        self.axes = [axis for axis in axes if axis.settings]

    def config_of(self, setting: Setting) -> Any:
        """The configuration with `setting`, learning rates by the rule.

        Raises:
            ConfigError, ValueError: It is refused, by its dataclass or because sizes do not divide by the ranks.
        """
        config = self.config
        for knob, value in setting.items():
            config = Knobs(self.recipe, config).turned(knob, value)
        if hasattr(self.recipe, "check"):
            self.recipe.check(config, config.run.nproc)
        return config

    def complete(self, chosen: list[Setting]) -> dict[str, Any] | None:
        """The chosen alternatives as one setting, learning rates included; None where they are refused together."""
        setting = {knob: value for part in chosen for knob, value in part.items()}
        try:
            config = self.config_of(setting)
            if self.rule == "sqrt-lr":
                growth = self.batch_rows(config) / self.batch_rows(self.config)
                if growth != 1:
                    setting |= {knob: rate * math.sqrt(growth) for knob, rate in self.learning_rates().items()}
        except (ConfigError, ValueError):
            return None
        return setting

    def batch_rows(self, config: Any) -> float:
        """Transitions of one update, over all ranks."""
        knobs = Knobs(self.recipe, config)
        if "global_batch_size" in knobs:
            return float(knobs.get("batch_size_per_rank") * config.run.nproc or knobs.get("global_batch_size"))
        if "minibatch_rows" in knobs:
            return float(knobs.get("minibatch_rows"))
        return knobs.get("num_envs") * knobs.get("num_steps") / knobs.get("minibatches")

    def learning_rates(self) -> dict[str, float]:
        """The learning rates that the running algorithm reads, by knob."""
        named = {knob: path for knob, path in self.knobs.places.items() if knob == "lr" or knob.endswith("_lr")}
        rates = {knob: attrgetter(path)(self.config) for knob, path in named.items()}
        return {knob: rate for knob, rate in rates.items() if isinstance(rate, float)}

    # -- what leaves learning alone ---------------------------------------------------------------------------------

    def layout(self) -> Axis:
        """Ranks of this machine and threads of each; sizes are over all ranks, so what is learnt stays."""
        settings = self.config.run
        if self.gpus:
            counts = [] if settings.gpus not in ("auto", "all") else [2**i for i in range(8) if 2**i <= self.gpus]
            return Axis("ranks", tuple({"nproc": count} for count in counts if count != self.facts.world_size))
        cores, found = max(self.facts.cores, 1), []
        for ranks in sorted({1, cores, *(2**i for i in range(8) if 2**i < cores)}):
            for threads in sorted({1, cores // ranks}):
                here = (ranks, threads) == (self.facts.world_size, self.facts.threads)
                if not here:
                    found.append({"nproc": ranks, "threads": threads})
        found.sort(key=lambda each: each["nproc"] * each["threads"] != cores)  # those that use all cores come first
        return Axis("ranks and threads", tuple(each for each in found if self._allowed(each)))

    def precision(self) -> Axis:
        known = ("fp32", "bf16", "fp16") if self.gpus else ("fp32", "bf16")
        now = self.knobs.get("precision")
        return Axis("precision", tuple({"precision": name} for name in known if name != now))

    def overlap(self) -> Axis:
        can = self.facts.can_overlap and not self.facts.overlap
        return Axis("overlap", ({"overlap": True},) if can else ())

    def turns(self) -> Axis:
        """Double buffering, where there are workers enough for two halves."""
        can = self.knobs.get("double_buffer") is False and len(self.facts.worker_rows) > 1 and self.facts.overlappable
        return Axis("double buffering", ({"double_buffer": True},) if can else ())

    def workers(self) -> Axis:
        """Worker processes of each rank; 0 steps the simulators in the training process."""
        if "num_workers" not in self.knobs:
            return Axis("workers", ())
        now, cores = len(self.facts.worker_rows), max(self.facts.cores, 1)
        counts = {count for count in (0, 1, cores, 2 * cores) if count <= self.facts.num_envs} - {now}
        return Axis("workers", tuple({"num_workers": count} for count in sorted(counts)))

    def launches(self) -> Axis:
        """Compiled losses and captured updates: on CPUs both are slower or impossible for networks of these sizes."""
        if not self.gpus:
            return Axis("launches", ())
        found: list[Setting] = [{"compile": True}] if self.knobs.get("compile") is False else []
        due = self.facts.grad_steps // max(self.facts.iterations, 1)
        if self.knobs.get("graph_updates") == 0 and due:
            found.append({"graph_updates": due})
        return Axis("launches", tuple(found))

    # -- what changes learning --------------------------------------------------------------------------------------

    def environments(self) -> Axis:
        n = self.knobs.get("num_envs", 0)
        sizes = sorted({int(n * factor) for factor in GROWTH} - {n, 0})
        return Axis("environments", tuple({"num_envs": size} for size in sizes), learning=True, modelled=True)

    def limit_environments(self, axis: Axis, most: int) -> None:
        """No more than `most` environments fit into memory: so many are the last alternative."""
        kept = [each for each in axis.settings if each["num_envs"] < most]
        last = [{"num_envs": most}] if most != self.knobs.get("num_envs") else []
        self.axes[self.axes.index(axis)] = dataclasses.replace(axis, settings=(*kept, *last))

    def batch(self) -> Axis:
        """Batches of other sizes, and as many updates as leave the samples learnt from where they are."""
        found: list[Setting] = []
        size, k = self.knobs.get("global_batch_size"), self.knobs.get("update_interval")
        if size and k and not self.knobs.get("batch_size_per_rank"):
            updates = self.knobs.get("updates_per_interval") or k
            for factor in GROWTH:
                interval, due = (k * int(factor), updates) if factor > 1 else (k, updates * int(1 / factor))
                ratio = {"update_interval": interval, "updates_per_interval": due}
                found.append({"global_batch_size": int(size * factor), **ratio})
        minibatches, envs = self.knobs.get("minibatches"), self.knobs.get("num_envs", 0)
        if minibatches and not size:
            counts = {int(minibatches / factor) for factor in GROWTH if minibatches / factor >= 1} - {minibatches}
            rows = envs * self.knobs.get("num_steps", 1)
            found += [{"minibatches": count} for count in sorted(counts) if rows % count == 0]
        if "minibatch_rows" in self.knobs:
            rows = self.knobs.get("minibatch_rows")
            sizes = sorted({int(rows * factor) for factor in GROWTH} - {rows, 0})
            found += [{"minibatch_rows": size} for size in sizes]
        return Axis("batch", tuple(found), learning=True, modelled=True)

    def _allowed(self, setting: Setting) -> bool:
        try:
            self.config_of(setting)
        except (ConfigError, ValueError):
            return False
        return True


def values_of(space: Space, setting: Setting, knobs: list[str]) -> dict[str, Any]:
    """What `knobs` are with `setting`; the map's coordinates."""
    found = {knob: setting.get(knob, space.knobs.get(knob)) for knob in knobs}
    if found.get("threads") == 0:
        found["threads"] = space.facts.threads
    if found.get("num_workers") == -1:
        found["num_workers"] = len(space.facts.worker_rows)
    if found.get("updates_per_interval") == 0:
        found["updates_per_interval"] = found.get("update_interval", space.knobs.get("update_interval"))
    return found


def as_paths(space: Space, setting: Setting) -> dict[str, Any]:
    """`setting` by qualified names, as a preset holds it."""
    places = Knobs(space.recipe, space.config_of(setting)).places
    return {places[knob]: value for knob, value in setting.items()}


def plain(config: Any) -> dict[str, Any]:
    """Every value of a configuration by its qualified name."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{name}": inner for name, inner in plain(value).items()}
        else:
            found[field.name] = value
    return found
