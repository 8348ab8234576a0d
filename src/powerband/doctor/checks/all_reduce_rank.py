"""One of the two ranks of section collectives: joins the process group, times all-reduces and leaves the group."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SIZES = (4, 2**20, 64 * 2**20)
"""Bytes: one number for the latency, a gradient of a recipe's networks, and a large tensor for the bandwidth."""
REPEATS = (50, 10, 3)
JOIN_TIMEOUT_S = 30.0


def main() -> None:
    """Entry point of a rank, which times all-reduces and writes its progress and its result to a file.

    The command line has ``FILE DEVICES``: the file for JSON lines, and a JSON list of devices. The environment
    variables RANK and WORLD_SIZE have the number of this rank and the number of ranks.
    """
    path, devices = Path(sys.argv[1]), json.loads(sys.argv[2])

    def report(**values: Any) -> None:
        with path.open("a") as sink:
            sink.write(json.dumps(values) + "\n")

    try:
        report(doing="importing torch")
        from powerband.core.ranks.ranks import Ranks

        report(doing="joining the group")
        ranks = Ranks.from_environment(devices, timeout_s=JOIN_TIMEOUT_S)
        report(doing="reducing")
        result = measure(ranks)
        report(doing="leaving", result=result)
        ranks.close()
    except Exception as error:
        from powerband.doctor.subprocess_call import describe

        report(error=describe(error))
        os._exit(1)
    os._exit(0)


def measure(ranks: Any) -> dict[str, Any]:
    """Times a sum over ranks for three tensor sizes: 4 bytes, 1 MiB and 64 MiB.

    Args:
        ranks: The process group, a `Ranks`.

    Returns:
        {"sizes": [{"bytes": size of the tensor, "us": median microseconds, "gb_s": gigabytes per second}], "correct":
        whether all sums were right}.
    """
    import torch

    from powerband.doctor.stopwatch import synchronize

    rows, correct = [], True
    for size, repeats in zip(SIZES, REPEATS, strict=True):
        tensor = torch.full((size // 4,), float(ranks.rank + 1), device=ranks.device)
        ranks.sum_(tensor)
        correct &= bool((tensor == sum(range(1, ranks.world_size + 1))).all())
        tensor.zero_()
        times = []
        for _ in range(repeats):
            ranks.barrier()
            synchronize(ranks.device)
            started = time.perf_counter()
            ranks.sum_(tensor)
            synchronize(ranks.device)
            times.append(time.perf_counter() - started)
        seconds = sorted(times)[len(times) // 2]
        rows.append({"bytes": size, "us": round(seconds * 1e6, 1), "gb_s": round(size / seconds / 1e9, 3)})
    return {"sizes": rows, "correct": correct}
