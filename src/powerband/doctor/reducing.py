"""Reducing: what one of the two ranks of section collectives does: join, reduce small and large tensors, leave."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SIZES = (4, 2**20, 64 * 2**20)
"""Bytes: one number (latency), about the gradient of a recipe's networks, and a large tensor (bandwidth)."""
REPEATS = (50, 10, 3)
JOIN_S = 30.0


def main() -> None:
    """Main function of a rank: ``FILE DEVICES`` on the command line, RANK and the like in the environment."""
    path, devices = Path(sys.argv[1]), json.loads(sys.argv[2])

    def say(**words: Any) -> None:
        with path.open("a") as sink:
            sink.write(json.dumps(words) + "\n")

    try:
        say(doing="importing torch")
        from powerband.core.distributed import Ranks

        say(doing="joining the group")
        ranks = Ranks.from_environment(devices, timeout_s=JOIN_S)
        say(doing="reducing")
        result = measure(ranks)
        say(doing="leaving", result=result)
        ranks.close()
    except Exception as error:
        from powerband.doctor.child import describe

        say(error=describe(error))
        os._exit(1)
    os._exit(0)


def measure(ranks: Any) -> dict[str, Any]:
    """Median time of a sum over ranks for each of `SIZES`, and whether the sums were right."""
    import torch

    from powerband.doctor.stopwatch import wait

    rows, correct = [], True
    for size, repeats in zip(SIZES, REPEATS, strict=True):
        tensor = torch.full((size // 4,), float(ranks.rank + 1), device=ranks.device)
        ranks.sum_(tensor)
        correct &= bool((tensor == sum(range(1, ranks.world_size + 1))).all())
        tensor.zero_()
        times = []
        for _ in range(repeats):
            ranks.barrier()
            wait(ranks.device)
            started = time.perf_counter()
            ranks.sum_(tensor)
            wait(ranks.device)
            times.append(time.perf_counter() - started)
        seconds = sorted(times)[len(times) // 2]
        rows.append({"bytes": size, "us": round(seconds * 1e6, 1), "gb_s": round(size / seconds / 1e9, 3)})
    return {"sizes": rows, "correct": correct}
