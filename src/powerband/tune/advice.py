"""Advice: what each knob would gain, from the model where it can be derived, from a short run where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from powerband.core.config import ConfigError
from powerband.core.device import device_names
from powerband.tune.candidates import as_words
from powerband.tune.diagnose import Diagnosis
from powerband.tune.knobs import Knobs
from powerband.tune.learning_knobs import LEARNING, num_envs
from powerband.tune.measure import Measurement, Recipe
from powerband.tune.model import UPDATE_ACCOUNTS, Throughput, fit
from powerband.tune.recorded_knobs import RECORDED
from powerband.tune.turn import WORTH, Advice

Probe = Callable[[Any], Measurement | None]
SURE = 1.2
"""A smaller gain that one short run showed is measured once more, beside the run as it stands."""
UPDATES_MATTER = 0.3
"""Share of the wall time from which on a short run is spent on faster updates."""
PACKED = 0.8
"""Share of the cores' time that simulators get to use where more of them compute than there are cores: the rest is
switching, and waiting for the last one. Without it four workers that draw with llvmpipe on two cores were predicted to
gain 1.07x and gave 0.94x (`benchmarks/results/faults_recipes.json`)."""
EVERYWHERE = ("threads", "precision", "intervals")
WITH_ENVS = ("overlap", "num_workers", "double_buffer", "graphs", *EVERYWHERE)
"""Knobs of any loop, and of one that steps environments; they leave learning as it is."""
LESS_OFTEN = 10
"""Factor by which a blocking interval is lengthened."""
MOST_SAID = 160
"""Characters of an error that a remark quotes."""


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
        self.on_cpu = device_names(config.run)[0] == "cpu"
        self.gpus = 0 if self.on_cpu else torch.cuda.device_count()
        self.model = fit(self.ledger, self.facts)
        self.advice: list[Advice] = []
        self.idle: dict[str, tuple[Any, float]] = {}

    def add(
        self,
        knob: str,
        value: Any,
        model: Throughput | float,
        why: str,
        *,
        learning: bool = False,
        probed: bool = False,
        listed: bool = False,
        **also: Any,
    ) -> None:
        """Adds one turn of `knob`; the model's own error at the present setting is taken off.

        Args:
            knob, value, model, why, learning, probed: As in `Advice`; the model, or its steps a second.
            listed: Keep it where it gains nothing too: that it does not help is worth knowing.
            also: Knobs that are turned with it.
        """
        predicted = model if isinstance(model, float) else model.steps_per_s
        gain = predicted / self.model.steps_per_s
        if gain < WORTH and not listed:
            if gain > self.idle.get(knob, (None, 0.0))[1]:
                self.idle[knob] = value, gain
            return
        try:
            config = self._turned({knob: value, **also})
        except (ConfigError, ValueError):
            return
        if probed and not learning and WORTH <= gain < SURE:
            again = self.compared(config)
            gain = (gain + again) / 2 if again >= WORTH else again
        if gain < WORTH:
            if not (listed and gain):
                self.idle[knob] = value, gain
                return
            gain, config = min(gain, 1.0), None
        rate, now = gain * self.measured.steps_per_s, self.knobs.get(knob)
        self.advice.append(Advice(knob, now, value, rate, gain, why, learning, probed, config))

    def _turned(self, setting: dict[str, Any]) -> Any:
        """The configuration with several knobs turned.

        Raises:
            ConfigError, ValueError: It is refused, as it would be on the command line.
        """
        config = self.knobs.config
        for knob, value in setting.items():
            config = Knobs(self.recipe, config).turned(knob, value)
        if hasattr(self.recipe, "check"):
            self.recipe.check(config, max(self.ranks, config.run.nproc))
        return config

    def compared(self, config: Any) -> float:
        """Rate of a changed configuration over that of the run as it stands, one after the other; 0 for no answer."""
        seen = [self.probe(each) for each in (self.knobs.config, config)]
        if any(each is None or not each.facts[0].iterations for each in seen):
            return 0.0
        return seen[1].steps_per_s / seen[0].steps_per_s

    def tried(self, knob: str, value: Any, **also: Any) -> Measurement | None:
        """A short run with knobs turned; None where there is no probe or it fails, which a remark then says."""
        try:
            return None if self.probe is None else self.probe(self._turned({knob: value, **also}))
        except (ConfigError, MemoryError, RuntimeError) as error:  # torch.compile's and CUDA's are RuntimeErrors
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.found.remarks.append(f"{as_words({knob: value})} was not measured: {said[:MOST_SAID].rstrip('. ')}.")
            return None

    def overlap(self) -> None:
        facts, model = self.facts, self.model
        if not facts.can_overlap or facts.overlap:
            return
        together = max(model.wait(model.num_envs), model.update_s, self._floor_s("update", "sample"))
        seconds = model.iteration_s - model.wait(model.num_envs) - model.update_s + together
        why = "updates run while simulators step; at most the smaller of the two is gained"
        self.add("overlap", True, model.steps / seconds, why)

    def _floor_s(self, *accounts: str) -> float:
        """Seconds of an iteration that the cores need for the simulators and for these accounts together."""
        facts, busy = self.facts, 1 - self.ledger.share("env_wait", "data_wait")  # who waits computes nothing
        own_s = self.ledger.cpu_s * self.ledger.share(*accounts) / max(busy, 1e-9)
        return (own_s + facts.env_cpu_s) * self.ranks / max(facts.iterations, 1) / max(facts.cores, 1)

    def double_buffer(self) -> None:
        """Halves of twice the workers by turns; the rest of an iteration stays."""
        facts, model, n = self.facts, self.model, self.model.num_envs
        if self.knobs.get("double_buffer") is not False or not facts.overlappable or n < 2:
            return
        halves = max(model.wait(n), 2 * model.act(n / 2), self._floor_s("act", "store"))
        predicted = model.steps / (model.iteration_s - model.wait(n) - model.act(n) + halves)
        said = self.knobs.get("num_workers", -1)
        also = {} if said < 0 else {"num_workers": min(facts.num_envs, 2 * said)}
        promising = predicted >= WORTH * model.steps_per_s
        seen = self.tried("double_buffer", True, **also) if promising else None
        if seen is not None and seen.facts[0].iterations:
            predicted = seen.steps_per_s / self.measured.steps_per_s * model.steps_per_s
        why = "actions for one half are chosen while the other half's simulators step"
        if also:
            why += f" (num_workers={also['num_workers']})"
        self.add("double_buffer", True, predicted, why, probed=seen is not None, **also)

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
        own_cores, best = max(1, facts.cores // self.ranks), 0.0
        for workers in sorted({min(n, 2 * now or 1), min(n, own_cores), n} - {now}):
            bounds = [n * index // workers for index in range(workers + 1)]
            each = max(sum(steps[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))
            floor = cpu * n * self.ranks / max(facts.cores, 1) / (PACKED if workers > own_cores else 1.0)
            predicted = self.model.with_wait(max(each, floor) * calls + overhead)
            if workers > own_cores and predicted.steps_per_s < WORTH * best:
                continue  # fewer do as well
            best = max(best, predicted.steps_per_s)
            self.add("num_workers", workers, predicted, f"{n} environments over {workers} workers instead of {now}")

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
        if self.knobs.get("precision") == "fp32" and self._updates_matter():
            seen = self.tried("precision", "bf16")
            factor = self._update_factor(seen) if seen is not None and seen.facts[0].grad_steps else 0.0
            if factor:
                faster = self.model.with_update_factor(factor)
                self.add("precision", "bf16", faster, "bfloat16 products", probed=True)

    def compile(self) -> None:
        """Compiled updates, measured once what they compile is there."""
        if self.knobs.get("compile") is not False or not self._updates_matter():
            return
        seen = self.tried("compile", True)
        if seen is not None and not seen.facts[0].grad_steps:  # its time was over when the actions were compiled
            seen = self.tried("compile", True)
        if seen is not None and seen.facts[0].grad_steps:  # a loss that is not in every update compiles in the window
            seen = self.tried("compile", True)
        if seen is None:
            return
        if not seen.facts[0].grad_steps:
            self.found.remarks.append("compile=True was not measured: two short runs ended before their first update.")
            return
        factor = self._update_factor(seen)
        if factor:
            why = f"measured: compiled updates take {factor:.2f}x as long here"
            self.add("compile", True, self.model.with_update_factor(factor), why, probed=True, listed=True)

    def _updates_matter(self) -> bool:
        return self.probe is not None and self.ledger.share("update", "launch") >= UPDATES_MATTER

    def _update_factor(self, seen: Measurement) -> float:
        """Seconds of an update in `seen` over those of the run as it stands; 0 for no answer.

        That run is measured once more, right after `seen`: on a shared machine minutes make more of a difference.
        """
        beside = self.probe(self.knobs.config)
        if beside is None or not beside.facts[0].grad_steps:
            return 0.0
        after, before = (
            sum(each.ledgers[0].seconds.get(name, 0.0) for name in UPDATE_ACCOUNTS) / each.facts[0].grad_steps
            for each in (seen, beside)
        )
        return after / before

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
        try:
            seen = self.probe(self._turned({"nproc": 2, **also}))
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


def advise(
    recipe: Recipe,
    config: Any,
    measured: Measurement,
    found: Diagnosis,
    probe: Probe | None = None,
    with_ranks: bool = False,
    compiling: bool = False,
) -> list[Advice]:
    """Every knob that would gain, the largest gain first, those that leave learning alone before the others.

    Args:
        recipe, config: What was run.
        measured: Its window.
        found: Its diagnosis.
        probe: Runs a changed configuration for some seconds; None derives what can be derived.
        with_ranks: Try twice the ranks too.
        compiling: Compile updates too.
    """
    if found.cause == "too-short" or not measured.facts[0].iterations:
        return []
    adviser, stepping = Adviser(recipe, config, measured, found, probe), bool(measured.facts[0].num_envs)
    if stepping:
        num_envs(adviser)  # first: it fits what grows with the environments
    for knob in WITH_ENVS if stepping else EVERYWHERE:
        getattr(adviser, knob)()
    for others in LEARNING if stepping else RECORDED:
        others(adviser)
    if compiling:
        adviser.compile()
    if with_ranks:
        adviser.nproc()
    known = {each.knob for each in adviser.advice}
    idle = {as_words({knob: value}): gain for knob, (value, gain) in adviser.idle.items() if knob not in known}
    if idle:
        said = ", ".join(f"{words} {gain:.2f}x" for words, gain in idle.items())
        found.remarks.append(f"predicted to gain nothing: {said}.")
    return sorted(adviser.advice, key=lambda each: (each.gain <= 1.0, each.learning, -each.gain))
