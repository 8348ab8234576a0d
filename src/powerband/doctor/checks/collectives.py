"""Section collectives of ``powerband doctor``: times all-reduces between two ranks, and kills ranks that hang."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from powerband.core.ranks.subprocesses import kill_session, start_ranks, wait_for_ranks
from powerband.doctor.check_result import CheckResult, fail, ok, skipped, warn
from powerband.doctor.context import Check, CheckContext

WORLD_SIZE = 2
TIMEOUT_S = 45.0
"""Seconds for both ranks to start, join, reduce and leave; on a busy machine the import of torch alone can take ten."""
RANK_PROGRAM = "from powerband.doctor.checks.all_reduce_rank import main; main()"
SLOW_LATENCY_US = {"gloo": 2000.0, "nccl": 200.0}


def checks(context: CheckContext) -> list[Check]:
    """Returns the checks of this section: gloo between two CPU ranks, and NCCL between two GPUs if there are two."""
    gloo: Check = ("gloo", lambda: reduce_row("gloo", ["cpu"]))
    gpus = [str(device) for device in context.devices[1:]]
    if len(gpus) >= WORLD_SIZE:
        return [gloo, ("nccl", lambda: reduce_row("nccl", gpus[:WORLD_SIZE]))]
    return [gloo, ("nccl", lambda: skipped("nccl", f"needs {WORLD_SIZE} GPUs; this machine has {len(gpus)}"))]


def reduce_row(
    backend: str, devices: list[str], program: str = RANK_PROGRAM, timeout_s: float = TIMEOUT_S
) -> CheckResult:
    """Times all-reduces between two new ranks; on failure, reports the rank and the operation that failed.

    Args:
        backend: ``gloo`` or ``nccl``, also the name of the result.
        devices: One device per rank, or ``["cpu"]`` for all ranks.
        program: Python source code that each rank runs.
        timeout_s: Seconds after which the ranks are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        messages = [Path(folder) / f"rank{rank}.jsonl" for rank in range(WORLD_SIZE)]
        outputs = [Path(folder) / f"rank{rank}.txt" for rank in range(WORLD_SIZE)]
        commands = [["-c", program, str(path), json.dumps(devices)] for path in messages]
        processes = start_ranks(commands, outputs, {"OMP_NUM_THREADS": "1"})
        try:
            problem = wait_for_ranks(processes, timeout_s, lambda rank: _stage(messages[rank]))
        finally:
            for process in processes:
                kill_session(process)
        lines = [line for path in messages for line in _read_lines(path)]
        errors = [line["error"] for line in lines if "error" in line]
        results = [line["result"] for line in lines if "result" in line]
    if problem or not results:
        detail = f" ({errors[0]})" if errors else ""
        advice = {
            "gloo": "Check that the host name resolves and that no firewall blocks connections between processes of "
            "this machine. GLOO_SOCKET_IFNAME=lo forces the loopback interface.",
            "nccl": "Run again with NCCL_DEBUG=INFO, then with NCCL_P2P_DISABLE=1. If the latter helps, the direct "
            "path between the GPUs is broken (IOMMU or ACS).",
        }
        return fail(backend, f"{problem or 'no rank measured anything'}{detail}", advice[backend])
    correct = len(results) == len(commands) and all(each["correct"] for each in results)
    return _measured_row(backend, {**results[0], "correct": correct})


def _measured_row(backend: str, result: dict[str, Any]) -> CheckResult:
    latency, network, large = result["sizes"]
    text = (
        f"all-reduce of {latency['bytes']} B in {latency['us']:.0f} us, {network['bytes'] >> 20} MiB (about the "
        f"networks of a recipe) in {network['us'] / 1e3:.2f} ms, {large['bytes'] >> 20} MiB at "
        f"{large['gb_s']:.2f} GB/s, {WORLD_SIZE} ranks"
    )
    metrics = {
        "ranks": WORLD_SIZE,
        "latency_us": latency["us"],
        "bandwidth_gb_s": large["gb_s"],
        "sizes": result["sizes"],
    }
    if not result["correct"]:
        return fail(
            backend,
            "the all-reduce returned a wrong sum",
            "Do not train on several ranks on this machine. Run again with NCCL_P2P_DISABLE=1 and report the result.",
            **metrics,
        )
    if latency["us"] > SLOW_LATENCY_US[backend]:
        return warn(
            backend,
            text,
            "Reductions are slow: the machine is busy, or the ranks use a slow network interface. Choose another one "
            "with GLOO_SOCKET_IFNAME=lo or NCCL_SOCKET_IFNAME.",
            **metrics,
        )
    return ok(backend, text, **metrics)


def _stage(path: Path) -> str:
    return ([line["doing"] for line in _read_lines(path) if "doing" in line] or ["starting"])[-1]


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the complete JSON lines that a rank has written."""
    try:
        text = path.read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
