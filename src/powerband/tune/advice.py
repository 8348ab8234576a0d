"""Advice: what each knob would gain, from the model where it can be derived, from a short run where it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from powerband.core.config import ConfigError
from powerband.core.device import device_names
from powerband.tune.diagnose import Diagnosis
from powerband.tune.knobs import Knobs
from powerband.tune.measure import Measurement, Recipe
from powerband.tune.model import Throughput, fit

Probe = Callable[[Any], Measurement | None]
WORTH = 1.03
"""A smaller gain is not advised: it drowns in the noise of a short run."""
SURE = 1.2
"""A smaller gain that one short run showed is measured once more, beside the run as it stands."""
MOST_THREADS = 8
"""Threads of a loader that are advised at most."""
WITH_ENVS = ("overlap", "num_workers", "threads", "precision", "graphs", "intervals", "ratio", "batch", "epochs")
RECORDED = ("loader_threads", "threads", "precision", "intervals")
"""Knobs of a loop that steps environments, and of one that learns from what was recorded."""
LESS_OFTEN = 10
"""Factor by which a blocking interval is lengthened."""


@dataclass(frozen=True)
class Advice:
    """One turn of a knob.

    Attributes:
        knob, now, value: What to change, from what, to what.
        steps_per_s: Predicted environment steps a second over all ranks.
        gain: The same over the measured rate; 1 where it gains nothing.
        why: One phrase.
        learning: It changes what is learnt (sizes, ratio), not only how fast.
        probed: A short run with this setting was measured.
        config: The configuration with it, None where it cannot be set alone.
    """

    knob: str
    now: Any
    value: Any
    steps_per_s: float
    gain: float
    why: str
    learning: bool = False
    probed: bool = False
    config: Any = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the predicted gain is a factor on the rate."""
        return {
            "knob": self.knob,
            "now": self.now,
            "value": self.value,
            "predicted_steps_per_s": self.steps_per_s,
            "predicted_gain": self.gain,
            "why": self.why,
            "changes_learning": self.learning,
            "probed": self.probed,
        }

    def __str__(self) -> str:
        tags = ["changes learning"] * self.learning + ["from a short run"] * self.probed
        why = f"{self.why} ({', '.join(tags)})" if tags else self.why
        return f"{self.knob:<22}{self.now!s:>10}{self.value!s:>10}{self.steps_per_s:>12,.0f}{self.gain:>7.2f}x  {why}"


class Adviser:
    """Collects advice for one measured run.

    Args:
        recipe, config: What was run.
        measured: Its window.
        found: Its diagnosis.
        probe: Runs a changed configuration for some seconds; None where that is not possible.
    """

    def __init__(
        self, recipe: Recipe, config: Any, measured: Measurement, found: Diagnosis, probe: Probe | None
    ) -> None:
        self.recipe, self.knobs, self.measured, self.found = recipe, Knobs(recipe, config), measured, found
        self.facts, self.ledger, self.probe = measured.facts[0], found.ledger, probe
        self.ranks = self.facts.world_size
        self.gpus = 0 if device_names(config.run)[0] == "cpu" else torch.cuda.device_count()
        self.model = fit(self.ledger, self.facts)
        self.advice: list[Advice] = []

    def add(
        self,
        knob: str,
        value: Any,
        model: Throughput | float,
        why: str,
        *,
        learning: bool = False,
        probed: bool = False,
        useless: bool = False,
        **also: Any,
    ) -> None:
        """Adds one turn of `knob`; the model's own error at the present setting is taken off."""
        predicted = model if isinstance(model, float) else model.steps_per_s
        gain = 1.0 if useless else predicted / self.model.steps_per_s
        if gain < WORTH and not useless:
            return
        try:
            config = self.knobs.turned(knob, value)
            for other, setting in also.items():
                config = Knobs(self.recipe, config).turned(other, setting)
        except (ConfigError, ValueError):
            return
        if probed and not learning and gain < SURE:
            again = self.compared(config)
            if again < WORTH:
                return
            gain = (gain + again) / 2
        rate = gain * self.measured.steps_per_s
        now = self.knobs.get(knob)
        self.advice.append(Advice(knob, now, value, rate, gain, why, learning, probed, None if useless else config))

    def compared(self, config: Any) -> float:
        """Rate of a changed configuration over that of the run as it stands, one after the other; 0 for no answer."""
        seen = [self.probe(each) for each in (self.knobs.config, config)]
        if any(each is None or not each.facts[0].iterations for each in seen):
            return 0.0
        return seen[1].steps_per_s / seen[0].steps_per_s

    # -- knobs that leave learning as it is -------------------------------------------------------------------------

    def overlap(self) -> None:
        facts, model = self.facts, self.model
        if not facts.can_overlap or facts.overlap:
            return
        own_cpu = self.ledger.cpu_s * self.ledger.share("update", "sample") * self.ranks
        floor = (own_cpu + facts.env_cpu_s * self.ranks) / max(facts.iterations, 1) / max(facts.cores, 1)
        together = max(model.wait(model.num_envs), model.update_s, floor)
        seconds = model.iteration_s - model.wait(model.num_envs) - model.update_s + together
        why = "updates run while simulators step; at most the smaller of the two is gained"
        self.add("overlap", True, model.steps / seconds, why)

    def num_workers(self) -> None:
        facts, steps = self.facts, self.facts.env_step_s
        if "num_workers" not in self.knobs or not steps:
            return
        n, now = len(steps), len(facts.worker_rows)
        slowest = max(sum(steps[row] for row in rows) for rows in facts.worker_rows)
        calls = max(facts.env_steps / max(1, n * self.ranks), 1) / max(facts.iterations, 1)
        cpu = facts.env_cpu_s / max(facts.env_steps / max(1, self.ranks), 1)
        wait = self.model.wait(self.model.num_envs)
        overhead = max(0.0, wait - slowest * calls)
        for workers in sorted({min(n, 2 * now or 1), min(n, max(1, facts.cores // self.ranks)), n} - {now}):
            bounds = [n * index // workers for index in range(workers + 1)]
            each = max(sum(steps[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))
            floor = cpu * n * self.ranks / max(facts.cores, 1)
            predicted = self.model.with_wait(max(each, floor) * calls + overhead)
            self.add("num_workers", workers, predicted, f"{n} environments over {workers} workers instead of {now}")

    def loader_threads(self) -> None:
        """Batches made ahead: an iteration then takes as long as the slower of their making and of all else."""
        now, wait = self.knobs.get("loader_threads"), self.ledger.share("data_wait")
        if now is None or wait < WORTH - 1:
            return
        rest = self.model.iteration_s * (1 - wait)
        # Where threads make them already and are waited for, they are what an iteration takes.
        making = now * self.model.iteration_s if now else self.model.iteration_s * wait
        floor = self.ledger.cpu_s * self.ranks / max(self.facts.iterations, 1) / max(self.facts.cores, 1)
        for threads in sorted({now + 1, 2 * now, min(MOST_THREADS, math.ceil(making / max(rest, 1e-9)))}):
            if threads > now:
                seconds = max(rest, making / threads, floor)
                self.add("loader_threads", threads, self.model.steps / seconds, "batches are made while updates run")

    def threads(self) -> None:
        own, fair = self.facts.threads, max(1, self.facts.cores // self.ranks)
        times = self.facts.threads_s
        if own not in times or fair not in times or fair == own:
            return
        predicted: Throughput | float = self.model.with_update_factor(times[fair] / times[own])
        seen = self.probe(self.knobs.turned("threads", fair)) if self.probe is not None else None
        if seen is not None and seen.facts[0].iterations:  # acting and stepping boards have threads too
            predicted = seen.steps_per_s / self.measured.steps_per_s * self.model.steps_per_s
        self.add("threads", fair, predicted, "as many threads as cores", probed=seen is not None)

    def precision(self) -> None:
        if self.knobs.get("precision") != "fp32" or self.ledger.share("update") < 0.3 or self.probe is None:
            return
        seen = self.probe(self.knobs.turned("precision", "bf16"))
        if seen is not None and seen.facts[0].grad_steps:
            before, after = (
                sum(ledger.seconds.get(name, 0.0) for name in ("update", "sample")) / facts.grad_steps
                for ledger, facts in ((self.ledger, self.facts), (seen.ledgers[0], seen.facts[0]))
            )
            self.add(
                "precision", "bf16", self.model.with_update_factor(after / before), "bfloat16 products", probed=True
            )

    def graphs(self) -> None:
        """Captured updates: the host no longer starts kernels one by one, so the device does not wait for it."""
        due = self.facts.grad_steps // max(self.facts.iterations, 1)
        launch, update = self.ledger.seconds.get("launch", 0.0), self.ledger.seconds.get("update", 0.0)
        if self.knobs.get("graph_updates") == 0 and launch and due:
            why = "the device waits for the host to start kernels; a graph starts them together"
            self.add("graph_updates", due, self.model.with_update_factor(update / (update + launch)), why)

    def nproc(self) -> None:
        """Two ranks, where there are cores or GPUs for them; they share environments and batch."""
        if self.ranks > 1 or self.probe is None or (self.gpus or self.facts.cores) < 2:
            return
        also = {} if self.gpus else {"threads": max(1, self.facts.cores // 2)}
        config = self.knobs.config
        try:
            for knob, value in {"nproc": 2, **also}.items():
                config = Knobs(self.recipe, config).turned(knob, value)
            if hasattr(self.recipe, "check"):
                self.recipe.check(config, 2)
            seen = self.probe(config)
        except (ConfigError, ValueError):  # sizes that do not divide, GPUs that were named one by one
            return
        if seen is not None and seen.facts[0].iterations:
            predicted = seen.steps_per_s / self.measured.steps_per_s * self.model.steps_per_s
            self.add("nproc", 2, predicted, "two ranks share environments and batch", probed=True, **also)

    def intervals(self) -> None:
        log = "log_interval" if self.knobs.get("log_interval", 0) else "log_interval_s"
        for knob, account in (("eval_interval", "eval"), ("save_interval", "save"), (log, "log")):
            value, share = self.knobs.get(knob, 0), self.ledger.share(account)
            if value and share >= 0.02:
                if knob != "log_interval_s":  # an iteration of many steps passes several short intervals at once
                    value = max(value, round(self.model.steps))
                rate = self.model.steps_per_s / (1 - share * (1 - 1 / LESS_OFTEN))
                self.add(knob, value * LESS_OFTEN, rate, f"training stands still for {share:.0%} of the time")

    # -- knobs that change learning ---------------------------------------------------------------------------------

    def num_envs(self) -> None:
        n = self.knobs.get("num_envs")
        if not n or self.probe is None or self.ledger.share("env", "env_wait", "act", "store", "other") < 0.15:
            return
        seen = self.probe(self.knobs.turned("num_envs", 4 * n))
        if seen is None or not seen.facts[0].iterations:
            return
        model = self.model = fit(self.ledger, self.facts, (seen.ledgers[0], seen.facts[0]))
        for factor in (2, 4, 8):
            predicted = model.with_envs(factor * model.num_envs)
            why = f"each call steps {factor} times as many"
            self.add("num_envs", factor * n, predicted, why, learning=True, probed=factor == 4)

    def ratio(self) -> None:
        """Update interval and updates: what an interval cannot do, and what fewer updates would."""
        k, u = self.knobs.get("update_interval"), self.knobs.get("updates_per_interval")
        if k is None:
            return
        if u in (0, k):
            self.add(
                "update_interval",
                10 * k,
                self.model,
                "cannot help: as many updates fall due with it (updates_per_interval follows), total work is unchanged",
                useless=True,
            )
        due = u or k
        interval, updates = (k, due // 2) if due >= 2 else (2 * k, due)
        predicted = self.model.with_schedule(interval, updates)
        if due >= 2:
            self.add("updates_per_interval", updates, predicted, "half the updates a transition", learning=True)
        else:
            why = f"half the updates a transition (with updates_per_interval={updates})"
            self.add("update_interval", interval, predicted, why, learning=True, updates_per_interval=updates)

    def batch(self) -> None:
        """Batches twice as large with half as many updates: as many samples are learnt from."""
        size, mini = self.knobs.get("global_batch_size"), self.knobs.get("minibatches")
        if size and self.knobs.get("update_interval"):
            k, u = self.knobs.get("update_interval"), self.knobs.get("updates_per_interval")
            half = replace(self.model, updates=self.model.updates / 2).with_batch(2 * self.model.rows)
            why = "twice the batch and half the updates: as many samples, fewer operations"
            also = {"update_interval": 2 * k, "updates_per_interval": u or k}
            self.add("global_batch_size", 2 * size, half, why, learning=True, **also)
        if mini and mini % 2 == 0 and "epochs" in self.knobs:
            why = "half as many mini-batches of twice the size"
            self.add("minibatches", mini // 2, self.model.with_minibatches(0.5), why, learning=True)
        if "minibatch_rows" in self.knobs:
            rows, why = self.knobs.get("minibatch_rows"), "half as many mini-batches of twice the size"
            self.add("minibatch_rows", 2 * rows, self.model.with_minibatches(0.5), why, learning=True)

    def epochs(self) -> None:
        epochs = self.knobs.get("epochs")
        if epochs and epochs >= 2:
            fewer = replace(self.model, updates=self.model.updates * (epochs // 2) / epochs)
            self.add("epochs", epochs // 2, fewer, "fewer passes over a rollout", learning=True)


def advise(
    recipe: Recipe,
    config: Any,
    measured: Measurement,
    found: Diagnosis,
    probe: Probe | None = None,
    with_ranks: bool = False,
) -> list[Advice]:
    """Every knob that would gain, the largest gain first, those that leave learning alone before the others.

    Args:
        recipe, config: What was run.
        measured: Its window.
        found: Its diagnosis.
        probe: Runs a changed configuration for some seconds; None derives what can be derived.
        with_ranks: Try twice the ranks too.
    """
    if found.cause == "too-short" or not measured.facts[0].iterations:
        return []
    adviser = Adviser(recipe, config, measured, found, probe)
    if measured.facts[0].num_envs:
        adviser.num_envs()  # first: it fits what grows with the environments
    for knob in WITH_ENVS if measured.facts[0].num_envs else RECORDED:
        getattr(adviser, knob)()
    if with_ranks:
        adviser.nproc()
    return sorted(adviser.advice, key=lambda each: (each.gain <= 1.0, each.learning, -each.gain))
