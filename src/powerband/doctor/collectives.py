"""Section collectives: two ranks that reduce tensors together; one that dies or hangs is named and not waited for."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from powerband.core.children import end, start_ranks, watch_ranks
from powerband.doctor.row import Row, fail, ok, skipped, warn
from powerband.doctor.scope import Check, Scope

WORLD = 2
TIMEOUT_S = 45.0
"""Seconds for both ranks to start, join, reduce and leave; on a busy machine importing torch alone can take ten."""
RANK = "from powerband.doctor.reducing import main; main()"
SLOW_LATENCY_US = {"gloo": 2000.0, "nccl": 200.0}


def checks(scope: Scope) -> list[Check]:
    """gloo between two CPU ranks, and NCCL between two GPUs where there are two."""
    found: list[Check] = [("gloo", lambda: reduce_row("gloo", ["cpu"]))]
    gpus = [str(device) for device in scope.devices[1:]]
    if len(gpus) >= WORLD:
        return [*found, ("nccl", lambda: reduce_row("nccl", gpus[:WORLD]))]
    return [*found, ("nccl", lambda: skipped("nccl", f"needs {WORLD} GPUs, {len(gpus)} here"))]


def reduce_row(backend: str, devices: list[str], program: str = RANK, timeout_s: float = TIMEOUT_S) -> Row:
    """Starts the ranks and reports what they measured, or which of them failed, how and where.

    Args:
        backend: gloo or nccl; names the row.
        devices: One device a rank, or ``["cpu"]`` for all.
        program: What each rank runs.
        timeout_s: Seconds after which the ranks are ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / f"rank{rank}.jsonl" for rank in range(WORLD)]
        outputs = [Path(folder) / f"rank{rank}.txt" for rank in range(WORLD)]
        commands = [["-c", program, str(path), json.dumps(devices)] for path in said]
        processes = start_ranks(commands, outputs, {"OMP_NUM_THREADS": "1"})
        try:
            problem = watch_ranks(processes, timeout_s, lambda rank: _stage(said[rank]))
        finally:
            for process in processes:
                end(process)
        lines = [line for path in said for line in _lines(path)]
        errors = [line["error"] for line in lines if "error" in line]
        results = [line["result"] for line in lines if "result" in line]
    if problem or not results:
        detail = f" ({errors[0]})" if errors else ""
        advice = {
            "gloo": "See that the host name resolves and that a firewall lets processes of this machine talk to each "
            "other (GLOO_SOCKET_IFNAME=lo forces the loopback).",
            "nccl": "Run again with NCCL_DEBUG=INFO, and try NCCL_P2P_DISABLE=1: where that helps, the direct path "
            "between the GPUs is broken (IOMMU or ACS).",
        }
        return fail(backend, f"{problem or 'no rank measured anything'}{detail}", advice[backend])
    return _measured(backend, results[0])


def _measured(backend: str, result: dict[str, Any]) -> Row:
    sizes = result["sizes"]
    text = (
        f"all-reduce of {sizes[0]['bytes']} B in {sizes[0]['us']:.0f} us, {sizes[1]['bytes'] >> 20} MiB (about the "
        f"networks of a recipe) in {sizes[1]['us'] / 1e3:.2f} ms, {sizes[2]['bytes'] >> 20} MiB at "
        f"{sizes[2]['gb_s']:.2f} GB/s, {WORLD} ranks"
    )
    figures = {"ranks": WORLD, "latency_us": sizes[0]["us"], "bandwidth_gb_s": sizes[2]["gb_s"], "sizes": sizes}
    if not result["correct"]:
        return fail(
            backend,
            "the ranks got a wrong sum",
            "Do not train on several ranks here: run the check again with NCCL_P2P_DISABLE=1, and report what differs.",
            **figures,
        )
    if sizes[0]["us"] > SLOW_LATENCY_US[backend]:
        return warn(
            backend,
            text,
            "Reductions are slow here: the machine is busy, or the ranks talk over a network "
            "interface (GLOO_SOCKET_IFNAME=lo, NCCL_SOCKET_IFNAME).",
            **figures,
        )
    return ok(backend, text, **figures)


def _stage(path: Path) -> str:
    return ([line["doing"] for line in _lines(path) if "doing" in line] or ["starting"])[-1]


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
