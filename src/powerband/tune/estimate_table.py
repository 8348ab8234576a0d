"""The table of an estimate: a row a number of ranks, its price, and whether it fits into what is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from powerband.tune.comm import Comm
from powerband.tune.forecast import Budget, Forecast

if TYPE_CHECKING:
    from powerband.tune.estimate import Options

GIB = 2**30


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


def _hours(seconds: float) -> str:
    """Hours with three figures, so that a run of a minute is no 0.0."""
    return f"{seconds / 3600:.3g}" if seconds < 3600 * 1000 else f"{seconds / 3600:,.0f}"
