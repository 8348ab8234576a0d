"""Options of ``powerband estimate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from powerband.core.errors import ConfigError

MIN_WINDOW_S, MAX_WINDOW_S = 1.0, 600.0
MAX_RANKS = 1024


@dataclass(frozen=True)
class EstimateOptions:
    """Options of ``powerband estimate`` besides the settings of the recipe."""

    ranks: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of ranks on one machine: one per GPU, or processes on the CPU."""
    seconds: float = 5.0
    """Seconds to measure per number of ranks, counted after the first updates; start-up takes additional time."""
    price_per_hour: float = 0.0
    """Price per hour, in any currency; 0 shows no cost."""
    price_per: Literal["auto", "gpu", "machine"] = "auto"
    """Unit of the price; auto is a GPU if ranks use GPUs, and the machine otherwise."""
    currency: str = ""
    """Currency of the price, shown with the cost."""
    latency_us: float = 0.0
    """Microseconds per message between ranks, to forecast all rows for such a link; requires bandwidth_gb_s."""
    bandwidth_gb_s: float = 0.0
    """Gigabytes per second between ranks; requires latency_us."""

    def __post_init__(self) -> None:
        if not self.ranks or not all(1 <= count <= MAX_RANKS for count in self.ranks):
            shown = ",".join(map(str, self.ranks)) or "nothing"
            raise ConfigError(f"ranks={shown}: each number must be from 1 to {MAX_RANKS}. Write ranks=1,2,4,8.")
        if not MIN_WINDOW_S <= self.seconds <= MAX_WINDOW_S:
            raise ConfigError(
                f"seconds={self.seconds:g} is outside {MIN_WINDOW_S:g} to {MAX_WINDOW_S:g}. An estimate needs a few "
                f"iterations and not an hour. Write seconds=5."
            )
        for name in ("price_per_hour", "latency_us", "bandwidth_gb_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name):g} is not a valid amount. Write {name}=0 or more.")
        if (self.latency_us > 0) != (self.bandwidth_gb_s > 0):
            raise ConfigError(
                f"latency_us={self.latency_us:g} and bandwidth_gb_s={self.bandwidth_gb_s:g}: a link needs both. "
                f"Write, for example, latency_us=10 bandwidth_gb_s=12, or neither."
            )
