"""Notes of an estimate: lists the assumptions behind its figures, and remarks about its measurements."""

from __future__ import annotations

from powerband.tune.diagnose.diagnosis import diagnose
from powerband.tune.knobs import Knobs
from powerband.tune.measure.in_process import Measurement
from powerband.tune.predict.comm import CommunicationModel
from powerband.tune.predict.forecast import CADENCES, Budget, Forecast


def estimate_notes(
    knobs: Knobs,
    budget: Budget,
    forecasts: dict[int, Forecast | str],
    measurements: dict[int, Measurement],
    measurable: set[int],
    comm: CommunicationModel | None,
    per_gpu: bool,
    cores: int,
) -> list[str]:
    """Returns the notes of an estimate, one sentence each: assumptions behind its figures, and remarks.

    Args:
        knobs: Settings of the run.
        budget: Environment steps and time limit of the run, with its evaluations and checkpoints.
        forecasts: Number of ranks -> its forecast, or the reason why it was skipped.
        measurements: Number of ranks -> its measurement.
        measurable: Numbers of ranks that this machine can run.
        comm: Cost of all-reduces; None if it is not needed or unknown.
        per_gpu: Whether each rank uses a GPU.
        cores: Number of cores of this machine.
    """
    rows = {ranks: forecast for ranks, forecast in forecasts.items() if isinstance(forecast, Forecast)}
    notes = _source_notes(rows, measurements, measurable, comm, per_gpu, cores)
    if knobs.get("batch_size_per_rank") and max(rows) > 1:
        notes.append("batch_size_per_rank is fixed: more ranks use larger batches, so each row trains differently.")
    defaults = {"nproc": 1, "nnodes": "1"}
    ignored = [f"{name}={knobs.get(name)}" for name, value in defaults.items() if knobs.get(name, value) != value]
    if ignored:
        notes.append(f"{', '.join(ignored)}: no effect here, because each row has its number of ranks.")
    notes += _cadence_notes(budget, next(iter(rows.values())))
    return notes + _measurement_notes(measurements)


def _source_notes(
    rows: dict[int, Forecast],
    measurements: dict[int, Measurement],
    measurable: set[int],
    comm: CommunicationModel | None,
    per_gpu: bool,
    cores: int,
) -> list[str]:
    """Returns notes about which numbers of ranks were measured, and how the remaining rates were forecast.

    `rows` maps each number of ranks to its forecast. `estimate_notes` describes the remaining arguments.
    """
    direct, forecast = ([str(ranks) for ranks in rows if (ranks in measurable) == wanted] for wanted in (True, False))
    notes = [f"{', '.join(direct)} rank{'s' * (direct != ['1'])}: measured directly on this machine."] if direct else []
    if forecast:
        notes.append(f"{', '.join(forecast)} ranks: forecast from the share of one rank, measured alone.")
    notes.append("start-up (imports, simulators, compiling) and the final checkpoint take additional time.")
    if comm is not None and forecast:
        facts = measurements[max(rows)].facts[0]
        mib = facts.reduced_bytes / max(facts.reductions, 1e-9) / 2**20
        notes.append(f"{facts.reductions:.3g} all-reduces of {mib:.3g} MiB per iteration over a ring; {comm}.")
    if per_gpu and forecast:
        notes.append(f"{max(rows)} ranks: assumes {max(rows)} GPUs like this one in one machine with {cores} cores.")
    crowded = [ranks for ranks in rows if ranks > cores]
    if crowded and not per_gpu:
        fitting = max((ranks for ranks in rows if ranks <= cores), default=1)
        notes.append(
            f"{', '.join(map(str, crowded))} ranks would share {cores} core{'s' * (cores > 1)} and cannot be faster "
            f"than {fitting}: those rows are upper bounds."
        )
    return notes


def _cadence_notes(budget: Budget, forecast: Forecast) -> list[str]:
    """Returns notes about the cost of evaluations and checkpoints."""
    notes = []
    events = {"eval": "an evaluation", "save": "a checkpoint"}
    for name, interval in {"eval": 0, **budget.intervals}.items():
        setting = f"{CADENCES[name]}={interval}" if interval else f"{CADENCES[name]}_s={budget.eval_interval_s:g}"
        if name in forecast.unknown:
            notes.append(f"{setting} was not reached: the cost of {events[name]} is unknown and not in the hours.")
        elif count := forecast.times(forecast.env_steps).get(name):
            notes.append(f"{setting}: the hours include {count:,} times {forecast.cadence_costs[name]:.2g} s.")
    return notes


def _measurement_notes(measurements: dict[int, Measurement]) -> list[str]:
    """Returns the notes of the diagnosis of each measurement, with the numbers of ranks that each note applies to."""
    rows_by_note: dict[str, list[int]] = {}
    for ranks, measured in measurements.items():
        diagnosis = diagnose(measured.ledgers, measured.facts[0])
        for note in [diagnosis.sentence] * (diagnosis.cause == "too-short") + diagnosis.notes:
            rows_by_note.setdefault(note, []).append(ranks)
    return [f"row of {', '.join(map(str, rows))}: {note}" for note, rows in rows_by_note.items()]
