"""Estimate: hours, memory and cost of a run on 1, 2, 4, 8 ranks before it starts, from some seconds of its real loop.

As many ranks as this machine has GPUs, or cores where there is none, are run for some seconds as they will be. More are
forecast: sizes are over all ranks, so a rank of R does an R-th of the work. That share is run alone, with the threads
it would have, and what several ranks add (all-reduces, cores that they share) is put on top of what was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from powerband.core import memory
from powerband.core.config import ConfigError
from powerband.core.device import cores, device_names
from powerband.tune.apart import short_run
from powerband.tune.comm import Comm
from powerband.tune.diagnose import diagnose
from powerband.tune.estimate_table import Estimate
from powerband.tune.forecast import CADENCES, Budget, Forecast
from powerband.tune.knobs import Knobs
from powerband.tune.measure import Measurement, Recipe, measure
from powerband.tune.share import share_of

LEAST_S, MOST_S = 1.0, 600.0
MOST_RANKS = 1024
APART_S = 2.0
"""Seconds of the run that is made for evaluations and checkpoints alone."""
START_S = 3.0
"""Seconds that a start-up may take, for the time that is shown as left."""

Reduce = Callable[[str, list[str]], Any]
"""(backend, devices) -> a row with status, measured and figures: how `doctor` times all-reduces between two ranks."""


@dataclass(frozen=True)
class Options:
    """What `powerband estimate` can be told beside the settings of the recipe."""

    ranks: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of ranks on one machine: GPUs, or processes where there is none."""
    seconds: float = 5.0
    """Seconds that each number of ranks is measured for, once it learns; start-up comes on top."""
    price_per_hour: float = 0.0
    """Price of an hour, in whatever currency; 0 leaves the cost out."""
    price_per: Literal["auto", "gpu", "machine"] = "auto"
    """What the price is for; auto is a GPU where ranks have GPUs, else the machine."""
    currency: str = ""
    """Shown with the cost."""
    latency_us: float = 0.0
    """Microseconds of a message between ranks, to forecast all rows for such a link; needs bandwidth_gb_s."""
    bandwidth_gb_s: float = 0.0
    """Gigabytes a second between ranks; needs latency_us."""

    def __post_init__(self) -> None:
        if not self.ranks or not all(1 <= count <= MOST_RANKS for count in self.ranks):
            shown = ",".join(map(str, self.ranks)) or "nothing"
            raise ConfigError(f"ranks={shown}: each is a number from 1 to {MOST_RANKS}. Write ranks=1,2,4,8.")
        if not LEAST_S <= self.seconds <= MOST_S:
            raise ConfigError(
                f"seconds={self.seconds:g} is outside {LEAST_S:g} to {MOST_S:g}: an estimate needs some iterations, "
                f"and no hour. Write seconds=5."
            )
        for name in ("price_per_hour", "latency_us", "bandwidth_gb_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name):g} is no amount. Write {name}=0 or more.")
        if (self.latency_us > 0) != (self.bandwidth_gb_s > 0):
            raise ConfigError(
                f"latency_us={self.latency_us:g} and bandwidth_gb_s={self.bandwidth_gb_s:g}: a link has both. "
                f"Write, for example, latency_us=10 bandwidth_gb_s=12, or neither."
            )


def estimate(
    recipe: Recipe,
    stage: str,
    config: Any,
    options: Options,
    reduce: Reduce,
    progress: Callable[[str, float], None] = lambda doing, share: None,
) -> Estimate:
    """Measures each share of the work, and what lies between ranks, and says what the whole run will take.

    Args:
        recipe, stage, config: What is to be trained; the configuration is settled.
        options: Numbers of ranks, seconds, price.
        reduce: Times all-reduces between two ranks of this machine.
        progress: Told what is measured now, and the share of the work that is done, 0 to 1.

    Raises:
        ConfigError: Nothing could be measured with any number of ranks.
    """
    forecasts: dict[int, Forecast | str] = {}
    knobs = Knobs(recipe, config)
    intervals = {name: int(knobs.get(setting, 0)) for name, setting in CADENCES.items()}
    budget = Budget(config.run.env_steps, config.run.time_limit_s, int(knobs.get("warmup", 0)), intervals)
    shares: dict[int, Any] = {}
    for ranks in sorted(set(options.ranks)):
        try:
            shares[ranks] = share_of(recipe, config, ranks)
        except ConfigError as error:
            forecasts[ranks] = str(error)
    if not shares:
        raise ConfigError(next(iter(forecasts.values())))

    names = device_names(next(iter(shares.values())).run)
    per_gpu = names != ["cpu"]
    here = {ranks for ranks in shares if ranks == 1 or (ranks <= _room(per_gpu) and not options.latency_us)}
    progress("all-reduces", 0.0)
    comm, problem = (None, "") if here == set(shares) else _comm(options, per_gpu, reduce)
    free_bytes = memory.free(names[0])
    seen: dict[int, Measurement] = {}
    apart: dict[str, float] | None = None
    for done, (ranks, share) in enumerate(shares.items(), 1):
        together = ranks in here
        doing = f"the share of one rank of {ranks}" if not together else f"{ranks} rank{'s' * (ranks > 1)}"
        progress(doing, done / (len(shares) + 1))
        if any(each.interrupted for each in seen.values()):
            forecasts[ranks] = "not measured: the estimate was asked to end."
            continue
        if not together and comm is None:
            forecasts[ranks] = problem
            continue
        if together and ranks > 1:
            here_alone = {"nnodes": "1", "rdzv_endpoint": "", "gpus": "auto" if per_gpu else "none"}
            share = replace(config, run=replace(config.run, nproc=ranks, **here_alone))
        try:
            measured = short_run(recipe, stage, share, options.seconds, probe=bool(knobs.get("graph_updates")))
        except (MemoryError, ConfigError) as error:
            if not together or ranks == 1:
                raise
            forecasts[ranks] = f"{ranks} ranks could not be run: {error}"
            continue
        if measured is None or not measured.facts[0].iterations:
            forecasts[ranks] = f"nothing could be measured in {options.seconds:g} s. Raise seconds."
            continue
        seen[ranks] = measured
        window = ranks, measured.ledgers[0], measured.facts[0], None if together else comm, budget
        forecast = Forecast.of(*window, apart or {}, not together)
        if forecast.unknown and apart is None and not measured.interrupted:
            apart = _apart(recipe, stage, shares[ranks], measured, forecast.unknown)
            forecast = Forecast.of(*window, apart, not together)
        forecasts[ranks] = forecast
    if not seen:
        raise ConfigError(next(iter(forecasts.values())))
    ordered = dict(sorted(forecasts.items()))
    notes = _notes(knobs, budget, ordered, seen, here, comm, per_gpu)
    return Estimate(options, budget, ordered, comm, per_gpu, free_bytes, notes)


def _room(per_gpu: bool) -> int:
    """Ranks that this machine can run side by side."""
    import torch

    return torch.cuda.device_count() if per_gpu else cores()


def _comm(options: Options, per_gpu: bool, reduce: Reduce) -> tuple[Comm | None, str]:
    """What lies between two ranks, and why that is not known."""
    import torch

    backend = "nccl" if per_gpu else "gloo"
    if options.latency_us:
        link = ((1, options.bandwidth_gb_s * 1e9),)
        return Comm(backend, "given", options.latency_us * 1e-6, link), ""
    if per_gpu and torch.cuda.device_count() < 2:
        return Comm.pcie(), ""
    row = reduce(backend, ["cuda:0", "cuda:1"] if per_gpu else ["cpu"])
    if "sizes" not in row.figures:
        return None, f"{backend} between two ranks could not be measured: {row.measured}. {row.advice}"
    return Comm.measured(backend, row.figures), ""


def _apart(recipe: Recipe, stage: str, config: Any, measured: Measurement, names: list[str]) -> dict[str, float]:
    """Seconds of an evaluation and of a checkpoint, from a short run that comes by them."""
    every = max(1, round(measured.steps_per_s * APART_S / 4))
    for name in names:
        config = Knobs(recipe, config).turned(CADENCES[name], every)
    found = measure(recipe, stage, config, APART_S, probe=False)
    if found is None:
        return {}
    return {name: found.ledgers[0].mean_s(name) for name in names if found.ledgers[0].mean_s(name)}


def _notes(
    knobs: Knobs,
    budget: Budget,
    forecasts: dict[int, Forecast | str],
    seen: dict[int, Measurement],
    here: set[int],
    comm: Comm | None,
    per_gpu: bool,
) -> list[str]:
    """Assumptions behind the figures, and what was odd about the windows they come from."""
    count = cores()
    rows = {ranks: found for ranks, found in forecasts.items() if isinstance(found, Forecast)}
    ran, shared = ([str(ranks) for ranks in rows if (ranks in here) == together] for together in (True, False))
    notes = [f"{', '.join(ran)} rank{'s' * (ran != ['1'])} ran here as they will."] if ran else []
    if shared:
        notes.append(f"rows of {', '.join(shared)} are one rank's share of the work, run alone here.")
    notes.append("start-up (imports, simulators, compiling) and the checkpoint at the end come on top.")
    if comm is not None and shared:
        facts = seen[max(rows)].facts[0]
        mib = facts.reduced_bytes / max(facts.reductions, 1e-9) / 2**20
        notes.append(f"{facts.reductions:.3g} all-reduces of {mib:.3g} MiB an iteration over a ring; {comm}.")
    if per_gpu and shared:
        notes.append(f"{max(rows)} ranks are {max(rows)} GPUs like this one, in one machine, whose cores are {count}.")
    crowded = [ranks for ranks in rows if ranks > count]
    if crowded and not per_gpu:
        fitting = max((ranks for ranks in rows if ranks <= count), default=1)
        notes.append(
            f"{', '.join(map(str, crowded))} ranks would share {count} core{'s' * (count > 1)} and cannot gain over "
            f"{fitting}: those rows are upper bounds."
        )
    if knobs.get("batch_size_per_rank") and max(rows) > 1:
        notes.append("batch_size_per_rank stays, so that more ranks learn from larger batches: another run each.")
    asked = {"nproc": 1, "nnodes": "1"}
    ignored = [f"{name}={knobs.get(name)}" for name, usual in asked.items() if knobs.get(name, usual) != usual]
    if ignored:
        notes.append(f"{', '.join(ignored)}: no effect here, every row says its ranks.")
    first = next(iter(rows.values()))
    times = {"eval": "an evaluation", "save": "a checkpoint"}
    for name in first.budget.intervals:
        setting = f"{CADENCES[name]}={budget.intervals[name]}"
        if name in first.unknown:
            notes.append(f"{setting} was not reached: what {times[name]} costs is unknown and not in the hours.")
        elif first.times(first.env_steps).get(name):
            each = first.apart[name]
            notes.append(f"{setting}: {first.times(first.env_steps)[name]:,} times {each:.2g} s are in the hours.")
    odd: dict[str, list[int]] = {}
    for ranks, measured in seen.items():
        found = diagnose(measured.ledgers, measured.facts[0])
        for remark in [found.sentence] * (found.cause == "too-short") + found.remarks:
            odd.setdefault(remark, []).append(ranks)
    return notes + [f"row of {', '.join(map(str, where))}: {remark}" for remark, where in odd.items()]
