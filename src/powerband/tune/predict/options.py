"""Options of ``powerband estimate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from powerband.core.config.ranges import Length, NonNegative, Range, check_ranges
from powerband.core.errors import ConfigError

MIN_WINDOW_S, MAX_WINDOW_S = 1.0, 600.0
RankCount = Annotated[int, Range(at_least=1, at_most=1024)]


@dataclass(frozen=True)
@check_ranges
class EstimateOptions:
    """Options of ``powerband estimate``, such as the numbers of ranks and the price per hour."""

    ranks: Annotated[tuple[RankCount, ...], Length(1)] = (1, 2, 4, 8)
    """Numbers of ranks on one machine: one per GPU, or processes on the CPU."""
    seconds: Annotated[float, Range(at_least=MIN_WINDOW_S, at_most=MAX_WINDOW_S)] = 5.0
    """Seconds to measure per number of ranks, counted after the first updates; start-up takes additional time."""
    price_per_hour: NonNegative = 0.0
    """Price per hour, in any currency; 0 shows no cost."""
    price_per: Literal["auto", "gpu", "machine"] = "auto"
    """Unit of the price; auto is a GPU if ranks use GPUs, and the machine otherwise."""
    currency: str = ""
    """Currency of the price, shown with the cost."""
    latency_us: NonNegative = 0.0
    """Microseconds per message between ranks, to forecast all rows for such a link; requires bandwidth_gb_s."""
    bandwidth_gb_s: NonNegative = 0.0
    """Gigabytes per second between ranks; requires latency_us."""

    def __post_init__(self) -> None:
        if (self.latency_us > 0) != (self.bandwidth_gb_s > 0):
            raise ConfigError(
                f"latency_us={self.latency_us:g} and bandwidth_gb_s={self.bandwidth_gb_s:g}: a link needs both. "
                f"Write, for example, latency_us=10 bandwidth_gb_s=12, or neither."
            )
