"""CommunicationModel: the cost of all-reduces between ranks, measured between two ranks, assumed, or set by the user.

A ring all-reduce of b bytes over R ranks sends 2 (R - 1) messages in sequence and moves 2 (R - 1) / R b bytes:

    t = 2 (R - 1) latency + 2 (R - 1) / R  b / bandwidth

Source: Patarasu and Yuan 2009 (bandwidth-optimal ring).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

WORLD_SIZE = 2
"""Number of ranks in the measurement: an all-reduce has two messages and moves the bytes of the tensor once."""
PCIE_LATENCY_S, PCIE_BYTES_PER_S = 10e-6, 12e9
"""Assumption for NCCL between GPUs of one machine over PCIe 4.0 x16 through the host; NVLink has ten times the
bandwidth."""


@dataclass(frozen=True)
class CommunicationModel:
    """Cost of all-reduces between ranks: latency and bandwidth.

    Attributes:
        backend: Name of the communication backend, gloo or nccl.
        source: Origin of the figures: "measured", "given" by the user, or "assumed".
        latency_s: Seconds per message without data.
        rates: Pairs of (bytes of a tensor, bytes per second for that size), the smallest first. Small tensors stay in
            the caches and have other rates.
    """

    backend: str
    source: str
    latency_s: float
    rates: tuple[tuple[int, float], ...]

    @classmethod
    def measured(cls, backend: str, figures: dict[str, Any]) -> CommunicationModel:
        """Creates a model from timed all-reduces between two ranks.

        Args:
            backend: Name of the communication backend, gloo or nccl.
            figures: {"sizes": [{"bytes": size of the tensor, "us": microseconds of its all-reduce}, ...]}, the smallest
                first. The first one gives the latency, the others give the bandwidth.
        """
        first, *larger = figures["sizes"]
        message_s = first["us"] * 1e-6
        rates = [(each["bytes"], each["bytes"] / max(each["us"] * 1e-6 - message_s, 1e-9)) for each in larger]
        return cls(backend, "measured", message_s / (2 * (WORLD_SIZE - 1)), tuple(rates))

    @classmethod
    def pcie(cls) -> CommunicationModel:
        """Returns a model with an assumed latency and bandwidth of PCIe.

        It serves for a machine with one GPU, which cannot measure the communication between two.
        """
        return cls("nccl", "assumed", PCIE_LATENCY_S, ((1, PCIE_BYTES_PER_S),))

    def bytes_per_s(self, size: float) -> float:
        """Returns the bandwidth for a tensor, in bytes per second: that of the measured size closest to it by ratio.

        Args:
            size: Bytes of the tensor.
        """
        return min(self.rates, key=lambda rate: abs(math.log(rate[0] / max(size, 1))))[1]

    def seconds(self, ranks: int, reductions: float, size: float) -> float:
        """Returns the seconds of a sequence of all-reduces.

        Args:
            ranks: Number of ranks.
            reductions: Number of all-reduces.
            size: Total bytes of these all-reduces.
        """
        if ranks == 1 or not reductions:
            return 0.0
        moved = 2 * (ranks - 1) / ranks * size / self.bytes_per_s(size / reductions)
        return reductions * 2 * (ranks - 1) * self.latency_s + moved

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a JSON value; each rate is {"bytes": tensor size, "gb_per_s": gigabytes per second}."""
        rates = [{"bytes": size, "gb_per_s": rate / 1e9} for size, rate in self.rates]
        return {**asdict(self), "rates": rates}

    def __str__(self) -> str:
        latency = f"{self.latency_s * 1e6:.3g} us per message"
        rates = ", ".join(
            f"{rate / 1e9:.3g} GB/s" + (f" with {size >> 20} MiB" if len(self.rates) > 1 else "")
            for size, rate in self.rates
        )
        source = {
            "measured": f"measured between {WORLD_SIZE} ranks here",
            "given": "set by latency_us and bandwidth_gb_s",
            "assumed": "assumed (PCIe 4.0 x16), because this machine has one GPU; latency_us= and bandwidth_gb_s= set "
            "another link, NVLink has about 100 GB/s",
        }[self.source]
        return f"{self.backend}: {latency}, {rates}, {source}"
