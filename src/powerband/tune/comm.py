"""Comm: what all-reduces between ranks cost, from a ring measured between two of them, or from a stated assumption.

An all-reduce of b bytes over R ranks is 2 (R - 1) messages, one after the other, and moves 2 (R - 1) / R b bytes:

    t = 2 (R - 1) latency + 2 (R - 1) / R  b / bandwidth

Source: Patarasu and Yuan 2009, the ring that is optimal in bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

WORLD = 2
"""Ranks that a measurement was made with: two messages, and as many bytes as the tensor has."""
PCIE_LATENCY_S, PCIE_BYTES_PER_S = 10e-6, 12e9
"""NCCL between GPUs of one machine over PCIe 4.0 x16 through the host; NVLink has a tenth of the bytes' time."""


@dataclass(frozen=True)
class Comm:
    """Latency and bandwidth between ranks.

    Attributes:
        backend: gloo or nccl.
        source: "measured", "given" or "assumed".
        latency_s: Seconds of one message without bytes.
        rates: (bytes of a tensor, bytes a second with such tensors), the smallest first: small ones stay in caches.
    """

    backend: str
    source: str
    latency_s: float
    rates: tuple[tuple[int, float], ...]

    @classmethod
    def measured(cls, backend: str, figures: dict[str, Any]) -> Comm:
        """From sums of several sizes over two ranks: ``sizes``, a list of ``bytes`` and ``us``, the smallest first."""
        first, *larger = figures["sizes"]
        bare_s = first["us"] * 1e-6
        rates = [(each["bytes"], each["bytes"] / max(each["us"] * 1e-6 - bare_s, 1e-9)) for each in larger]
        return cls(backend, "measured", bare_s / (2 * (WORLD - 1)), tuple(rates))

    @classmethod
    def pcie(cls) -> Comm:
        """The assumption where there is one GPU and nothing to measure between."""
        return cls("nccl", "assumed", PCIE_LATENCY_S, ((1, PCIE_BYTES_PER_S),))

    def bytes_per_s(self, size: float) -> float:
        """The rate of the tensors that are nearest in size (in ratio)."""
        return min(self.rates, key=lambda rate: abs(math.log(rate[0] / max(size, 1))))[1]

    def seconds(self, ranks: int, reductions: float, size: float) -> float:
        """Seconds of `reductions` all-reduces over `ranks` ranks, one after the other, of `size` bytes together."""
        if ranks == 1 or not reductions:
            return 0.0
        moved = 2 * (ranks - 1) / ranks * size / self.bytes_per_s(size / reductions)
        return reductions * 2 * (ranks - 1) * self.latency_s + moved

    def to_dict(self) -> dict[str, Any]:
        """As JSON; bandwidths by size."""
        rates = [{"bytes": size, "gb_per_s": rate / 1e9} for size, rate in self.rates]
        return {**asdict(self), "rates": rates}

    def __str__(self) -> str:
        latency = f"{self.latency_s * 1e6:.3g} us a message"
        rates = ", ".join(
            f"{rate / 1e9:.3g} GB/s" + (f" with {size >> 20} MiB" if len(self.rates) > 1 else "")
            for size, rate in self.rates
        )
        whence = {
            "measured": f"measured between {WORLD} ranks here",
            "given": "as given",
            "assumed": "assumed (PCIe 4.0 x16): one GPU has no other to measure with; latency_us= and bandwidth_gb_s= "
            "set others, NVLink has some 100 GB/s",
        }[self.source]
        return f"{self.backend}: {latency}, {rates}, {whence}"
