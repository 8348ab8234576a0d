"""Estimate: hours, memory and cost of a run on 1, 2, 4, 8 ranks before it starts, from some seconds of its real loop.

Sizes are over all ranks, so a rank of R does an R-th of the work. That share is run alone for some seconds, with the
threads it would have, and what several ranks add (all-reduces, cores that they share) is put on top of what was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from powerband.core import memory
from powerband.core.config import ConfigError
from powerband.core.device import cores, device_names
from powerband.tune.comm import Comm
from powerband.tune.diagnose import diagnose
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
GIB = 2**30

Reduce = Callable[[str, list[str]], Any]
"""(backend, devices) -> a row with status, measured and figures: how `doctor` times all-reduces between two ranks."""


@dataclass(frozen=True)
class Options:
    """What `powerband estimate` can be told beside the settings of the recipe."""

    ranks: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of ranks on one machine: GPUs, or processes where there is none."""
    seconds: float = 5.0
    """Seconds that each number of ranks is measured for, after the first updates; start-up comes on top."""
    price_per_hour: float = 0.0
    """Price of an hour, in whatever currency; 0 leaves the cost out."""
    price_per: Literal["auto", "gpu", "machine"] = "auto"
    """What the price is for; auto is a GPU where ranks have GPUs, else the machine."""
    currency: str = ""
    """Shown with the cost."""
    latency_us: float = 0.0
    """Microseconds of a message between ranks, instead of measuring it; needs bandwidth_gb_s."""
    bandwidth_gb_s: float = 0.0
    """Gigabytes a second between ranks, instead of measuring them; needs latency_us."""

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


@dataclass(frozen=True)
class Estimate:
    """What a run will take.

    Attributes:
        options: What was asked.
        budget: What ends the run.
        forecasts: Number of ranks -> its forecast, or why there is none.
        comm: What all-reduces cost; None where no row needs it, or it could not be measured.
        per_gpu: A rank has a GPU of its own.
        free_bytes: Memory that is free on the GPU, or on the machine for all ranks together; None where nobody says.
        notes: Assumptions, and what else should be known to read the figures.
    """

    options: Options
    budget: Budget
    forecasts: dict[int, Forecast | str]
    comm: Comm | None
    per_gpu: bool
    free_bytes: int | None
    notes: list[str]

    def cost(self, found: Forecast) -> float | None:
        """Price of a run; None without a price."""
        price, each = self.options.price_per_hour, self.options.price_per
        if not price:
            return None
        count = found.ranks if each == "gpu" or (each == "auto" and self.per_gpu) else 1
        return found.seconds / 3600 * price * count

    def fits(self, found: Forecast) -> bool | None:
        """Whether the ranks fit into what is free now; None where nobody says."""
        if self.free_bytes is None or not found.memory_bytes:
            return None
        return found.memory_bytes * (1 if self.per_gpu else found.ranks) <= self.free_bytes

    def to_dict(self) -> dict[str, Any]:
        """As JSON: ``rows``, and all that they rest on."""
        rows = []
        for ranks, found in self.forecasts.items():
            if isinstance(found, str):
                rows.append({"ranks": ranks, "skipped": found})
            else:
                rows.append({**found.to_dict(), "cost": self.cost(found), "fits": self.fits(found)})
        return {
            "rows": rows,
            "budget": {"env_steps": self.budget.env_steps, "time_limit_s": self.budget.time_limit_s},
            "comm": None if self.comm is None else self.comm.to_dict(),
            "free_bytes": self.free_bytes,
            "price_per_hour": self.options.price_per_hour or None,
            "currency": self.options.currency,
            "notes": self.notes,
        }

    def __str__(self) -> str:
        limit = f" or {self.budget.time_limit_s:g} s, whichever is first" if self.budget.time_limit_s else ""
        priced = bool(self.options.price_per_hour)
        cost = f"{f'cost {self.options.currency}'.strip():>12}" if priced else ""
        head = f"{'ranks':>5}{'env steps/s':>13}{'hours':>9}{'env steps':>15}  {'ended by':<13}{'GiB a rank':>10}{cost}"
        lines = [f"to {self.budget.env_steps:,} env steps{limit}", "", f"{head}  limit"]
        for ranks, found in self.forecasts.items():
            if isinstance(found, str):
                lines.append(f"{ranks:>5}  skipped: {found}")
                continue
            price = f"{self.cost(found):>12,.2f}" if priced else ""
            part, share = found.limit
            full = " (does not fit)" if self.fits(found) is False else ""
            lines.append(
                f"{ranks:>5}{found.steps_per_s:>13,.0f}{_hours(found.seconds):>9}{found.env_steps:>15,}  "
                f"{found.ends_by:<13}{found.memory_bytes / GIB:>10.2f}{price}  {part} {share:.0%}{full}"
            )
        return "\n".join([*lines, "", *(f"note: {note}" for note in self.notes)])


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
    progress("all-reduces", 0.0)
    comm, problem = (None, "") if max(shares) == 1 else _comm(options, per_gpu, reduce)
    free_bytes = memory.free(names[0])
    seen: dict[int, Measurement] = {}
    apart: dict[str, float] | None = None
    for done, (ranks, share) in enumerate(shares.items(), 1):
        progress(f"the share of one rank of {ranks}", done / (len(shares) + 1))
        if any(each.interrupted for each in seen.values()):
            forecasts[ranks] = "not measured: the estimate was asked to end."
            continue
        if ranks > 1 and comm is None:
            forecasts[ranks] = problem
            continue
        measured = measure(recipe, stage, share, options.seconds, probe=bool(knobs.get("graph_updates")))
        if measured is None or not measured.facts[0].iterations:
            forecasts[ranks] = f"nothing could be measured in {options.seconds:g} s. Raise seconds."
            continue
        seen[ranks] = measured
        window = ranks, measured.ledgers[0], measured.facts[0], comm, budget
        forecast = Forecast.of(*window, apart or {})
        if forecast.unknown and apart is None and not measured.interrupted:
            apart = _apart(recipe, stage, share, measured, forecast.unknown)
            forecast = Forecast.of(*window, apart)
        forecasts[ranks] = forecast
    if not seen:
        raise ConfigError(next(iter(forecasts.values())))
    ordered = dict(sorted(forecasts.items()))
    notes = _notes(knobs, budget, ordered, seen, comm, per_gpu)
    return Estimate(options, budget, ordered, comm, per_gpu, free_bytes, notes)


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
    comm: Comm | None,
    per_gpu: bool,
) -> list[str]:
    """Assumptions behind the figures, and what was odd about the windows they come from."""
    count = cores()
    notes = [
        "each row is one rank's share of the work, run alone here; start-up (imports, simulators, compiling) and the "
        "checkpoint at the end come on top."
    ]
    rows = {ranks: found for ranks, found in forecasts.items() if isinstance(found, Forecast)}
    if comm is not None and max(rows) > 1:
        facts = seen[max(rows)].facts[0]
        mib = facts.reduced_bytes / max(facts.reductions, 1e-9) / 2**20
        notes.append(f"{facts.reductions:.3g} all-reduces of {mib:.3g} MiB an iteration over a ring; {comm}.")
    if per_gpu and max(rows) > 1:
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


def _hours(seconds: float) -> str:
    """Hours with three figures, so that a run of a minute is no 0.0."""
    return f"{seconds / 3600:.3g}" if seconds < 3600 * 1000 else f"{seconds / 3600:,.0f}"
