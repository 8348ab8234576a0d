"""Estimate: predicts hours, memory and cost of a run on several numbers of ranks, from short runs of its real loop.

Numbers of ranks that this machine can run (one per GPU, or one per core on the CPU) are measured directly. Larger
numbers are forecast. The sizes in a configuration are totals over all ranks, so one of R ranks does 1/R of the work.
A short run with one rank measures this share, with the number of threads that each of R ranks would have. The forecast
adds the costs of several ranks: all-reduces and shared cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch

from powerband.core.errors import ConfigError
from powerband.core.machine import memory
from powerband.core.machine.device import cores, device_names
from powerband.core.recipe import Recipe
from powerband.tune.knobs import Knobs
from powerband.tune.measure.in_process import Measurement, measure
from powerband.tune.measure.in_subprocesses import short_run
from powerband.tune.predict.comm import CommunicationModel
from powerband.tune.predict.estimate_notes import estimate_notes
from powerband.tune.predict.estimate_table import Estimate
from powerband.tune.predict.forecast import CADENCES, Budget, Forecast
from powerband.tune.predict.options import EstimateOptions as EstimateOptions
from powerband.tune.predict.rank_share import single_rank_config

CADENCE_RUN_S = 2.0
"""Seconds of the run that measures only evaluations and checkpoints."""
START_S = 3.0
"""Assumed seconds of a start-up, for the remaining time on the progress bar."""


class AllReduceResult(Protocol):
    """Result of timing all-reduces, such as a `CheckResult` of ``powerband doctor``.

    Attributes:
        message: Description of the result or of the failure.
        advice: How to fix a failure.
        metrics: Figures by name; ``sizes`` is missing after a failure, see `CommunicationModel.measured`.
    """

    @property
    def message(self) -> str: ...
    @property
    def advice(self) -> str: ...
    @property
    def metrics(self) -> dict[str, Any]: ...


TimeAllReduces = Callable[[str, list[str]], AllReduceResult]
"""``(backend, devices) -> result``: times all-reduces between two ranks of this machine."""


def estimate(
    recipe: Recipe,
    stage: str,
    config: Any,
    options: EstimateOptions,
    time_all_reduces: TimeAllReduces,
    progress: Callable[[str, float], object] = lambda doing, share: None,
) -> Estimate:
    """Measures short runs and forecasts the complete run for each number of ranks.

    Args:
        recipe: Recipe to train.
        stage: Name of the stage (function of the recipe) to run, such as ``train``.
        config: Configuration of the run, with all automatic choices resolved.
        options: Options of the estimate.
        time_all_reduces: Function ``(backend, devices) -> result`` that times all-reduces between two ranks here.
        progress: Called with the name of each measurement and the share of the work that is done, 0 to 1.

    Raises:
        ConfigError: No number of ranks could be measured.
    """
    forecasts: dict[int, Forecast | str] = {}
    knobs = Knobs(recipe, config)
    intervals = {name: int(knobs.get(setting, 0)) for name, setting in CADENCES.items()}
    budget = Budget(
        config.run.env_steps,
        config.run.time_limit_s,
        int(knobs.get("learning_starts", 0)),
        intervals,
        config.run.eval_interval_s,
    )
    shares: dict[int, Any] = {}
    for ranks in sorted(set(options.ranks)):
        try:
            shares[ranks] = single_rank_config(recipe, config, ranks)
        except ConfigError as error:
            forecasts[ranks] = str(error)
    if not shares:
        raise ConfigError(str(next(iter(forecasts.values()))))

    names = device_names(next(iter(shares.values())).run)
    per_gpu = names != ["cpu"]
    measurable = {ranks for ranks in shares if ranks == 1 or (ranks <= _max_ranks(per_gpu) and not options.latency_us)}
    progress("all-reduces", 0.0)
    comm: CommunicationModel | None = None
    problem = ""
    if measurable != set(shares):
        comm, problem = _communication(options, per_gpu, time_all_reduces)
    free_bytes = memory.free(names[0])
    measurements: dict[int, Measurement] = {}
    cadence_costs: dict[str, float] | None = None
    for done, (ranks, share) in enumerate(shares.items(), 1):
        together = ranks in measurable
        doing = f"{ranks} rank{'s' * (ranks > 1)}" if together else f"the share of one of {ranks} ranks"
        progress(doing, done / (len(shares) + 1))
        if any(each.interrupted for each in measurements.values()):
            forecasts[ranks] = "not measured: a signal ended the estimate."
            continue
        if not together and comm is None:
            forecasts[ranks] = problem
            continue
        if together and ranks > 1:
            one_machine = {"nnodes": "1", "rdzv_endpoint": "", "gpus": "auto" if per_gpu else "none"}
            share = replace(config, run=replace(config.run, nproc=ranks, **one_machine))
        try:
            measured = short_run(recipe, stage, share, options.seconds, probe=bool(knobs.get("graph_updates")))
        except (MemoryError, ConfigError) as error:
            if not together or ranks == 1:
                raise
            forecasts[ranks] = f"{ranks} ranks failed: {error}"
            continue
        if measured is None or not measured.facts[0].iterations:
            forecasts[ranks] = f"nothing was measured in {options.seconds:g} s. Raise seconds."
            continue
        measurements[ranks] = measured
        window = ranks, measured.ledgers[0], measured.facts[0], None if together else comm, budget
        forecast = Forecast.from_window(*window, cadence_costs or {}, not together)
        if forecast.unknown and cadence_costs is None and not measured.interrupted:
            cadence_costs = _cadence_costs(recipe, stage, shares[ranks], measured, forecast.unknown)
            forecast = Forecast.from_window(*window, cadence_costs, not together)
        forecasts[ranks] = forecast
    if not measurements:
        raise ConfigError(str(next(iter(forecasts.values()))))
    ordered = dict(sorted(forecasts.items()))
    notes = estimate_notes(knobs, budget, ordered, measurements, measurable, comm, per_gpu, cores())
    return Estimate(options, budget, ordered, comm, per_gpu, free_bytes, notes)


def _max_ranks(per_gpu: bool) -> int:
    """Returns the number of ranks that this machine can run at the same time."""
    return torch.cuda.device_count() if per_gpu else cores()


def _communication(
    options: EstimateOptions, per_gpu: bool, time_all_reduces: TimeAllReduces
) -> tuple[CommunicationModel | None, str]:
    """Returns (cost of all-reduces between ranks, ""), or (None, reason why the cost is unknown)."""
    backend = "nccl" if per_gpu else "gloo"
    if options.latency_us:
        link = ((1, options.bandwidth_gb_s * 1e9),)
        return CommunicationModel(backend, "given", options.latency_us * 1e-6, link), ""
    if per_gpu and torch.cuda.device_count() < 2:
        return CommunicationModel.pcie(), ""
    result = time_all_reduces(backend, ["cuda:0", "cuda:1"] if per_gpu else ["cpu"])
    if "sizes" not in result.metrics:
        return None, f"{backend} between two ranks could not be measured: {result.message}. {result.advice}"
    return CommunicationModel.measured(backend, result.metrics), ""


def _cadence_costs(
    recipe: Recipe, stage: str, config: Any, measured: Measurement, names: list[str]
) -> dict[str, float]:
    """Returns name -> seconds per event, for the events in `names` ("eval", "save") that a short run reaches.

    The intervals of the events are shortened according to the rate in `measured`. Events that were not reached are
    missing.
    """
    interval = max(1, round(measured.steps_per_s * CADENCE_RUN_S / 4))
    for name in names:
        config = Knobs(recipe, config).with_value(CADENCES[name], interval)
    result = measure(recipe, stage, config, CADENCE_RUN_S, probe=False)
    if result is None:
        return {}
    return {name: result.ledgers[0].mean_s(name) for name in names if result.ledgers[0].mean_s(name)}
