"""Estimate: holds the forecasts of a run and prints them as a table, with one row per number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from powerband.tune.predict.comm import CommunicationModel
from powerband.tune.predict.forecast import Budget, Forecast
from powerband.tune.predict.options import EstimateOptions

GIB = 2**30


@dataclass(frozen=True)
class Estimate:
    """Forecasts of a run on several numbers of ranks.

    Attributes:
        options: Options of the estimate.
        budget: Environment steps and time limit of the run, with its evaluations and checkpoints.
        forecasts: Number of ranks -> its forecast, or the reason why it was skipped.
        comm: Cost of all-reduces; None if no forecast needs it, or if it could not be measured.
        per_gpu: Whether each rank uses a GPU.
        free_bytes: Free memory of one GPU, or of the machine for all ranks together; None if unknown.
        notes: Assumptions and remarks about the figures.
    """

    options: EstimateOptions
    budget: Budget
    forecasts: dict[int, Forecast | str]
    comm: CommunicationModel | None
    per_gpu: bool
    free_bytes: int | None
    notes: list[str]

    def cost(self, forecast: Forecast) -> float | None:
        """Returns the price of a complete run in the currency of `options`; None without a price per hour."""
        price, unit = self.options.price_per_hour, self.options.price_per
        if not price:
            return None
        count = forecast.ranks if unit == "gpu" or (unit == "auto" and self.per_gpu) else 1
        return forecast.seconds / 3600 * price * count

    def fits(self, forecast: Forecast) -> bool | None:
        """Returns whether the ranks of a forecast fit into the free memory.

        Returns None if the free memory or the memory of a rank is unknown.
        """
        if self.free_bytes is None or not forecast.memory_bytes:
            return None
        return forecast.memory_bytes * (1 if self.per_gpu else forecast.ranks) <= self.free_bytes

    def to_dict(self) -> dict[str, Any]:
        """Returns the estimate as a JSON value.

        ``rows`` has one dict per number of ranks: its forecast with ``cost`` and ``fits``, or the reason ``skipped``.
        The other keys are the figures and assumptions behind them.
        """
        rows: list[dict[str, Any]] = []
        for ranks, forecast in self.forecasts.items():
            if isinstance(forecast, str):
                rows.append({"ranks": ranks, "skipped": forecast})
            else:
                rows.append({**forecast.to_dict(), "cost": self.cost(forecast), "fits": self.fits(forecast)})
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
        header = (
            f"{'ranks':>5}{'env steps/s':>13}{'hours':>9}{'env steps':>15}  {'ended by':<13}{'GiB per rank':>13}{cost}"
        )
        lines = [f"to {self.budget.env_steps:,} env steps{limit}", "", f"{header}  limit"]
        for ranks, forecast in self.forecasts.items():
            if isinstance(forecast, str):
                lines.append(f"{ranks:>5}  skipped: {forecast}")
                continue
            price = f"{self.cost(forecast):>12,.2f}" if priced else ""
            part, share = forecast.limit
            full = " (does not fit)" if self.fits(forecast) is False else ""
            lines.append(
                f"{ranks:>5}{forecast.steps_per_s:>13,.0f}{_hours(forecast.seconds):>9}{forecast.env_steps:>15,}  "
                f"{forecast.ends_by:<13}{forecast.memory_bytes / GIB:>13.2f}{price}  {part} {share:.0%}{full}"
            )
        return "\n".join([*lines, "", *(f"note: {note}" for note in self.notes)])


def _hours(seconds: float) -> str:
    """Formats seconds as hours with three significant digits, so that a run of a minute is not shown as 0.0."""
    return f"{seconds / 3600:.3g}" if seconds < 3600 * 1000 else f"{seconds / 3600:,.0f}"
