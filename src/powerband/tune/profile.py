"""Profile: measures a recipe for some seconds and reports time per category, bottleneck and advice on settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from powerband.core.config.ranges import Range, check_ranges
from powerband.core.errors import ConfigError
from powerband.core.machine.device import device_names
from powerband.core.recipe import Recipe
from powerband.tune.advise.advice import LEARNING_NOT_MEASURED, Advice
from powerband.tune.advise.advise import advise
from powerband.tune.advise.adviser import reason_of
from powerband.tune.diagnose.diagnosis import Diagnosis, diagnose
from powerband.tune.knobs import Knobs
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.in_process import Measurement, measure, with_measured_precision
from powerband.tune.measure.in_subprocesses import short_run
from powerband.tune.measure.ledger import Ledger

MIN_WINDOW_S, MAX_WINDOW_S = 1.0, 600.0
RANKS_S = 10.0
"""Shortest profile, in seconds, that also tries two ranks. They start in new processes, which takes time."""
COMPILE_CPU_S = 30.0
"""Shortest profile, in seconds, that also compiles updates on a CPU, where compiling takes as long as a profile and has
made no measured run faster. On a GPU the limit is `RANKS_S`."""
RARE_WINDOWS = 20
"""If more measured windows than this separate two evaluations or checkpoints, their cost is too small for a note."""


@dataclass(frozen=True)
@check_ranges
class ProfileOptions:
    """Options of ``powerband profile``, such as the length of the measurement in seconds."""

    seconds: Annotated[float, Range(at_least=MIN_WINDOW_S, at_most=MAX_WINDOW_S)] = 20.0
    """Seconds to measure, counted after the first updates; start-up and probes take additional time."""
    probe: bool = True
    """Time single updates and try changed settings after the measurement; false measures the run alone."""
    apply: bool = False
    """Run the best advice for the same time and compare its rate with the predicted one."""


@dataclass(frozen=True)
class Profile:
    """Result of ``powerband profile``: where the time of a run went, why, and which settings to change.

    Attributes:
        measurement: Measurement of the run with its settings as configured.
        diagnosis: Bottlenecks of the run.
        advice: Knobs (settings) with a predicted gain, the largest gain first, then knobs that are listed only to
            explain why they cannot help. A note of `diagnosis` names the knobs that were considered and left out.
        applied: Result of running the best advice: knob, value, predicted and realised steps per second. None
            without the option ``apply``, or if no advice has a gain.
    """

    measurement: Measurement
    diagnosis: Diagnosis
    advice: list[Advice]
    applied: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the profile as a JSON value.

        ``ledger`` maps each account (category of time) to seconds. ``cause`` and ``findings`` are the bottlenecks, and
        ``ranks`` has the measurements of each rank.
        """
        measured, diagnosis = self.measurement, self.diagnosis
        return {
            "wall_s": diagnosis.ledger.wall_s,
            "ledger": diagnosis.ledger.seconds,
            "steps_per_s": measured.steps_per_s,
            "cause": diagnosis.cause,
            "exit_code": diagnosis.exit_code,
            "sentence": diagnosis.sentence,
            "findings": [
                {"cause": f.cause, "claim": f.explained_share, "sentence": f.sentence, "fix": f.fix, "knobs": f.knobs}
                for f in diagnosis.findings
            ],
            "remarks": diagnosis.notes,
            "advice": [each.to_dict() for each in self.advice],
            "applied": self.applied,
            "ranks": [
                {"ledger": ledger.to_dict(), "facts": facts.to_dict()}
                for ledger, facts in zip(measured.ledgers, measured.facts, strict=True)
            ],
        }

    def __str__(self) -> str:
        measured, diagnosis = self.measurement, self.diagnosis
        lines: list[str] = []
        if len(measured.ledgers) > 1:
            for rank, ledger in enumerate(measured.ledgers):
                lines += [f"rank {rank}", ledger.table(), ""]
        else:
            lines += [diagnosis.ledger.table(), ""]
        lines.append(f"{measured.steps_per_s:,.0f} env steps/s")
        lines += [line] if (line := _arithmetic(diagnosis.ledger, measured.facts[0])) else []
        lines += diagnosis.lines()
        head = f"{'option':<22}{'now':>10}{'value':>10}{'steps/s':>12}{'gain':>8}  why"
        for changes, first in ((False, []), (True, [LEARNING_NOT_MEASURED])):
            rows = [str(each) for each in self.advice if each.learning == changes]
            lines += ["", *first, head, *rows] if rows else []
        if self.applied:
            a = self.applied
            lines += [
                "",
                f"applied {a['knob']}={a['value']}: predicted {a['predicted_steps_per_s']:,.0f} steps/s, realised "
                f"{a['realised_steps_per_s']:,.0f} ({a['error']:+.0%}); before {a['before_steps_per_s']:,.0f}",
            ]
        return "\n".join(lines)


def profile(recipe: Recipe, stage: str, config: Any, options: ProfileOptions) -> Profile:
    """Measures and diagnoses a run and computes advice; with ``apply`` it also runs the best advice.

    Args:
        recipe: Recipe to profile.
        stage: Name of the stage (function of the recipe) to run, such as ``train``.
        config: Configuration of the run.
        options: Options of the profile.

    Raises:
        ConfigError: The run ended before anything was measured.
    """
    measured = measure(recipe, stage, config, options.seconds, options.probe)
    if measured is None:
        raise ConfigError(
            f"The run ended before anything was measured in {options.seconds:g} s. "
            f"Raise seconds, or remove the setting that ends the run early."
        )
    config = with_measured_precision(config, measured)
    diagnosis = diagnose(measured.ledgers, measured.facts[0], _unmeasured_cadences(recipe, config, measured))
    several_ranks = measured.facts[0].world_size > 1
    probe_s = max(min(2.0, options.seconds), options.seconds / 6)
    probe: Callable[[Any], Measurement | None] | None = None
    if measured.interrupted:
        diagnosis.notes.append(f"{measured.interrupted} ended the measurement early: no changed setting was tried.")
    elif options.probe and not several_ranks and diagnosis.cause != "too-short":
        # With several ranks there is no probe: a process group cannot be left and joined again in one process.

        def probe(changed: Any) -> Measurement | None:
            return short_run(recipe, stage, changed, probe_s, probe=False)

    compile_s = COMPILE_CPU_S if device_names(config.run)[0] == "cpu" else RANKS_S
    slow_probes = {"with_ranks": options.seconds >= RANKS_S, "with_compile": options.seconds >= compile_s}
    advice = advise(recipe, config, measured, diagnosis, probe, **slow_probes)
    applied = None
    if options.apply and not measured.interrupted:
        best = next((each for each in advice if each.gain > 1.0 and not each.learning), None)
        if best is None or several_ranks:
            reason = (
                "with several ranks only the run itself is measured"
                if several_ranks
                else "no knob that leaves learning unchanged has a predicted gain"
            )
            diagnosis.notes.append(f"no advice was applied: {reason}.")
        else:
            try:
                applied = _apply(recipe, stage, best, measured, options.seconds)
            except (ConfigError, MemoryError, RuntimeError) as error:
                diagnosis.notes.append(f"{best.knob}={best.value} was not applied: {reason_of(error)}.")
    return Profile(measured, diagnosis, advice, applied)


def _apply(recipe: Recipe, stage: str, best: Advice, before: Measurement, seconds: float) -> dict[str, Any]:
    """Runs the best advice and compares its rate with the predicted one.

    Returns knob, value, and the rates and gains (predicted and realised) by name.

    Raises:
        ConfigError: The run ended before anything was measured.
        MemoryError, RuntimeError: The run failed.
    """
    after = short_run(recipe, stage, best.config, seconds, probe=False)
    if after is None or not after.steps_per_s:
        raise ConfigError("the run ended before anything was measured")
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


def _arithmetic(ledger: Ledger, facts: WindowFacts) -> str:
    """Returns a line with the arithmetic rate of the updates and its share of the device's peak; "" if unknown."""
    flops_s = facts.flops_s(ledger.by_host().seconds.get("update", 0.0))
    if not flops_s or not facts.peak_flops_s:
        return ""
    return (
        f"updates: {facts.update_flops / 1e6:,.1f} MFLOP each, {flops_s / 1e9:,.1f} GFLOP/s, "
        f"{100 * flops_s / facts.peak_flops_s:.2g}% of a large matrix product here (MFU)"
    )


def _unmeasured_cadences(recipe: Recipe, config: Any, measured: Measurement) -> list[str]:
    """Returns a note per evaluation or checkpoint interval that the window was too short to reach."""
    knobs, ledger = Knobs(recipe, config), measured.ledgers[0]
    steps = measured.facts[0].env_steps
    cadences: list[tuple[str, str, float, str]] = [
        ("eval_interval", "eval", steps, f"{steps} steps"),
        ("save_interval", "save", steps, f"{steps} steps"),
    ]
    if not knobs.get("eval_interval", 0):
        cadences[0] = "eval_interval_s", "eval", ledger.wall_s, f"{ledger.wall_s:.3g} s"
    notes = []
    for knob, account, reached, text in cadences:
        interval = knobs.get(knob, 0)
        if 0 < interval <= RARE_WINDOWS * reached and not ledger.seconds.get(account):
            notes.append(f"{knob}={interval} was not reached in {text}: its cost is not measured.")
    return notes
