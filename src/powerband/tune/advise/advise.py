"""Advise: predicts the gain of changing each setting of a measured run, with the throughput model or a short run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from powerband.core.recipe import Recipe
from powerband.tune.advise.advice import Advice
from powerband.tune.advise.adviser import Adviser, Probe
from powerband.tune.advise.learning_knobs import batch_size, epochs, num_envs, update_ratio
from powerband.tune.advise.recorded_data_knobs import loader_threads, place
from powerband.tune.advise.run_knobs import device, intervals, nproc
from powerband.tune.advise.simulator_knobs import double_buffer, num_workers, overlap
from powerband.tune.advise.update_knobs import compile_losses, graph_updates, precision, threads
from powerband.tune.diagnose.diagnosis import Diagnosis
from powerband.tune.measure.in_process import Measurement
from powerband.tune.search.candidates import as_command_line

Rule = Callable[[Adviser], None]
ENV_LOOP_RULES: tuple[Rule, ...] = (
    num_envs,  # first, because it refits the model with the part of each step that grows with the environments
    overlap,
    num_workers,
    double_buffer,
    graph_updates,
    device,
    threads,
    precision,
    intervals,
    update_ratio,
    batch_size,
    epochs,
)
"""Rules for loops that step environments, in the order of their short runs."""
RECORDED_DATA_RULES: tuple[Rule, ...] = (threads, precision, intervals, loader_threads, place)
"""Rules for loops that learn from recorded data."""


def advise(
    recipe: Recipe,
    config: Any,
    measured: Measurement,
    diagnosis: Diagnosis,
    probe: Probe | None = None,
    with_ranks: bool = False,
    with_compile: bool = False,
) -> list[Advice]:
    """Predicts for each setting (knob) of a measured run how much a change raises the environment steps per second.

    A note is added to `diagnosis` that names the knobs whose change does not help.

    Args:
        recipe: Recipe of the run.
        config: Configuration of the run.
        measured: Measurement of the run.
        diagnosis: Diagnosis of the measurement.
        probe: Measures a changed configuration in a short run; None only predicts, with the throughput model.
        with_ranks: Also measure a run with two ranks.
        with_compile: Also measure a run with compiled losses.

    Returns:
        Advice on the changes that help, and then on those that are listed although they do not help. In the first
        group, changes that leave learning unchanged come first, sorted by gain.
    """
    if diagnosis.cause == "too-short" or not measured.facts[0].iterations:
        return []
    adviser = Adviser(recipe, config, measured, diagnosis, probe)
    rules = ENV_LOOP_RULES if measured.facts[0].num_envs else RECORDED_DATA_RULES
    for rule in (*rules, *([compile_losses] if with_compile else []), *([nproc] if with_ranks else [])):
        rule(adviser)
    listed = {each.knob for each in adviser.advice}
    without_gain = [
        f"{as_command_line({knob: value})} {gain:.2f}x"
        for knob, (value, gain) in adviser.without_gain.items()
        if knob not in listed
    ]
    if without_gain:
        diagnosis.notes.append(f"predicted to gain nothing: {', '.join(without_gain)}.")
    return sorted(adviser.advice, key=lambda each: (each.gain <= 1.0, each.learning, -each.gain))
