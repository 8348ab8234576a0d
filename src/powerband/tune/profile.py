"""Profile: a recipe runs for some seconds; where its time goes, what binds it, what each knob would gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from powerband.core.config import ConfigError
from powerband.core.device import device_names
from powerband.tune.advice import Advice, advise
from powerband.tune.apart import short_run
from powerband.tune.diagnose import Diagnosis, diagnose
from powerband.tune.facts import Facts
from powerband.tune.knobs import Knobs
from powerband.tune.ledger import Ledger
from powerband.tune.measure import Measurement, Recipe, as_measured, measure

LEAST_S, MOST_S = 1.0, 600.0
RANKS_S = 10.0
"""From so many seconds on, a profile also tries more ranks: they start in processes of their own, which takes time."""
COMPILE_CPU_S = 30.0
"""From so many seconds on, a profile also compiles updates on processors, where that takes as long as the profile and
has gained nothing yet; on GPUs it does so from `RANKS_S` on."""
SELDOM = 20
"""Windows between two evaluations or checkpoints from which on their cost is no longer worth a remark."""


@dataclass(frozen=True)
class Options:
    """What `powerband profile` can be told beside the settings of the recipe."""

    seconds: float = 20.0
    """Seconds that are measured, after the first updates; probes and start-up come on top."""
    probe: bool = True
    """Time updates by themselves and try changed settings afterwards; false measures the window alone."""
    apply: bool = False
    """Run the best advice for the same time and compare it with what was predicted."""

    def __post_init__(self) -> None:
        if not LEAST_S <= self.seconds <= MOST_S:
            raise ConfigError(
                f"seconds={self.seconds:g} is outside {LEAST_S:g} to {MOST_S:g}: a profile needs some iterations, "
                f"and no hour. Write seconds=20."
            )


@dataclass(frozen=True)
class Profile:
    """What a profile found.

    Attributes:
        measurement: The window of the run as it was configured.
        diagnosis: What binds it.
        advice: Each knob that gains, the largest gain first, and those whose row says why they cannot; what else was
            weighed is in a remark of `diagnosis`.
        applied: The best advice after it was run: knob, value, predicted and realised steps a second; None without
            ``apply``, or where nothing gains.
    """

    measurement: Measurement
    diagnosis: Diagnosis
    advice: list[Advice]
    applied: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON: ``wall_s``, ``ledger`` (account: seconds), ``cause``, ``advice``, and what they were read from."""
        m, found = self.measurement, self.diagnosis
        return {
            "wall_s": found.ledger.wall_s,
            "ledger": found.ledger.seconds,
            "steps_per_s": m.steps_per_s,
            "cause": found.cause,
            "exit_code": found.exit_code,
            "sentence": found.sentence,
            "findings": [
                {"cause": f.cause, "claim": f.claim, "sentence": f.sentence, "fix": f.fix, "knobs": f.knobs}
                for f in found.findings
            ],
            "remarks": found.remarks,
            "advice": [each.to_dict() for each in self.advice],
            "applied": self.applied,
            "ranks": [
                {"ledger": ledger.to_dict(), "facts": facts.to_dict()}
                for ledger, facts in zip(m.ledgers, m.facts, strict=True)
            ],
        }

    def __str__(self) -> str:
        m, found, lines = self.measurement, self.diagnosis, []
        if len(m.ledgers) > 1:
            for rank, ledger in enumerate(m.ledgers):
                lines += [f"rank {rank}", ledger.table(), ""]
        else:
            lines += [found.ledger.table(), ""]
        lines.append(f"{m.steps_per_s:,.0f} env steps/s")
        lines += [line] if (line := _arithmetic(found.ledger, m.facts[0])) else []
        lines.append(f"{found.cause}: {found.sentence}")
        lines += [f"  do: {found.findings[0].fix}"] if found.findings else []
        lines += [f"also {each.cause}: {each.sentence}" for each in found.findings[1:]]
        lines += [f"note: {remark}" for remark in found.remarks]
        if self.advice:
            lines += ["", f"{'knob':<22}{'now':>10}{'value':>10}{'steps/s':>12}{'gain':>8}  why"]
            lines += [str(each) for each in self.advice]
        if self.applied:
            a = self.applied
            lines += [
                "",
                f"applied {a['knob']}={a['value']}: predicted {a['predicted_steps_per_s']:,.0f} steps/s, realised "
                f"{a['realised_steps_per_s']:,.0f} ({a['error']:+.0%}); before {a['before_steps_per_s']:,.0f}",
            ]
        return "\n".join(lines)


def profile(recipe: Recipe, stage: str, config: Any, options: Options) -> Profile:
    """Measures, diagnoses and advises; with ``apply`` runs the best advice too.

    Raises:
        ConfigError: The run ended before anything could be measured.
    """
    measured = measure(recipe, stage, config, options.seconds, options.probe)
    if measured is None:
        raise ConfigError(
            f"the run ended before anything could be measured in {options.seconds:g} s. "
            f"Raise seconds, or take the limit out of the settings."
        )
    config = as_measured(config, measured)
    found = diagnose(measured.ledgers, measured.facts[0], _unseen(recipe, config, measured))
    several = measured.facts[0].world_size > 1
    short = max(min(2.0, options.seconds), options.seconds / 6)
    probe: Callable[[Any], Measurement | None] | None = None
    if measured.interrupted:
        found.remarks.append(f"ended early by {measured.interrupted}: nothing more was probed.")
    elif (
        options.probe and not several and found.cause != "too-short"
    ):  # ranks cannot leave their group and meet again in one process

        def probe(changed: Any) -> Measurement | None:
            return short_run(recipe, stage, changed, short, probe=False)

    compile_s = COMPILE_CPU_S if device_names(config.run)[0] == "cpu" else RANKS_S
    long = {"with_ranks": options.seconds >= RANKS_S, "compiling": options.seconds >= compile_s}
    advice = advise(recipe, config, measured, found, probe, **long)
    applied = None
    if options.apply and not measured.interrupted:
        best = next((each for each in advice if each.gain > 1.0 and not each.learning), None)
        if best is None or several:
            why = "ranks are profiled once" if several else "no knob that leaves learning alone gains anything"
            found.remarks.append(f"nothing was applied: {why}.")
        else:
            applied = _apply(recipe, stage, best, measured, options.seconds)
    return Profile(measured, found, advice, applied)


def _apply(recipe: Recipe, stage: str, best: Advice, before: Measurement, seconds: float) -> dict[str, Any] | None:
    after = short_run(recipe, stage, best.config, seconds, probe=False)
    if after is None:
        return None
    return {
        "knob": best.knob,
        "value": best.value,
        "before_steps_per_s": before.steps_per_s,
        "predicted_steps_per_s": best.steps_per_s,
        "realised_steps_per_s": after.steps_per_s,
        "predicted_gain": best.gain,
        "realised_gain": after.steps_per_s / before.steps_per_s,
        "error": best.steps_per_s / after.steps_per_s - 1,
    }


def _arithmetic(ledger: Ledger, facts: Facts) -> str:
    """What the updates compute a second, beside what this device reaches; "" where it was not counted."""
    reached = facts.flops_s(ledger.seconds.get("update", 0.0) + ledger.seconds.get("launch", 0.0))
    if not reached or not facts.peak_flops_s:
        return ""
    return (
        f"updates: {facts.update_flops / 1e6:,.1f} MFLOP each, {reached / 1e9:,.1f} GFLOP/s, "
        f"{100 * reached / facts.peak_flops_s:.2g}% of a large matrix product here (MFU)"
    )


def _unseen(recipe: Recipe, config: Any, measured: Measurement) -> list[str]:
    """Cadences that the window was too short to reach: what they cost is not in the ledger."""
    knobs, steps = Knobs(recipe, config), measured.facts[0].env_steps
    found = []
    for knob, account in (("eval_interval", "eval"), ("save_interval", "save")):
        every = knobs.get(knob, 0)
        if 0 < every <= SELDOM * steps and not measured.ledgers[0].seconds.get(account):
            found.append(f"{knob}={every} was not reached in {steps} steps: its cost is not measured.")
    return found
