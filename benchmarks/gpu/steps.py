"""The steps of `scripts/first_gpu.py` in the order of their worth, so that a script that is killed leaves the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu.step import Figure, Step

TOTAL_S = 540.0
"""Limit in seconds for all steps together, which the limits of the steps do not exceed."""
SAC_GOALS = {256: 5_000, 2048: 3_000}
"""Batch size -> updates/s that a data-centre GPU should reach."""
DIFFUSERS_NEEDS = ("huggingface_hub", "importlib_metadata", "regex", "requests")
"""Modules without which diffusers cannot be imported, so that a skipped step names all that is missing."""
NUMBA = ("torch", "numpy", "numba")


def machine_figures(result: dict[str, Any]) -> Iterator[Figure]:
    """Rate of a large matrix product, which shows whether the GPU is free."""
    yield Figure("large bf16 product", result["bf16_flops_s"] / 1e12, "TFLOP/s")


def sac_figures(result: dict[str, Any]) -> Iterator[Figure]:
    """Updates/s by precision, batch size and mode; graphed modes are compared with eager updates of the same row."""
    for row in result["rows"]:
        for mode, measured in row["modes"].items():
            eager = row["modes"].get("eager", measured)["updates_per_s"]
            rate, compared_with = measured["updates_per_s"], f"goal {SAC_GOALS[row['batch']]:,}"
            if mode != "eager":
                captured = "" if measured["graph"] else "no graph was captured, "
                ratio = f", {rate / eager:.2f}x eager" if "eager" in row["modes"] else ""
                compared_with = f"{captured}{compared_with}{ratio}"
            yield Figure(f"batch {row['batch']}, {row['precision']}, {mode}", rate, "updates/s", compared_with)


def rdt_figures(result: dict[str, Any]) -> Iterator[Figure]:
    """Samples/s with cached and with encoded features, MFU and memory."""
    for ledger in result["ledgers"]:
        name = ledger["model"]
        yield Figure(f"{name}, cached features", ledger["samples_per_s_cached"], "samples/s", "goal 110")
        yield Figure(f"{name}, encoded in each update", ledger["samples_per_s_encoded"], "samples/s")
        yield Figure(f"{name}, MFU with cached features", 100 * ledger["mfu"], "%", "goal 40")
        if "memory_gib" in ledger:
            yield Figure(f"{name}, memory", ledger["memory_gib"], "GiB")
        if "eager_step_ms" in ledger:
            ratio, gib = ledger["eager_step_ms"] / ledger["step_ms"], ledger["eager_memory_gib"]
            yield Figure(f"{name}, gain of compiled blocks", ratio, "x", f"without them {gib:.0f} GiB")
    for row in result["rows"]:
        yield Figure(f"{row['model']}, gain of cached features", row["gain"], "x", "goal 1.8, interleaved updates")


def uav_figures(result: dict[str, Any]) -> Iterator[Figure]:
    """Agent-steps/s by number of missions."""
    for row in result["rows"]:
        compared_with = "goal 100,000; 8,582 on two CPU threads"
        yield Figure(f"{row['missions']} missions", row["agent_steps_per_s"], "agent-steps/s", compared_with)


def sketchnav_figures(result: dict[str, Any]) -> Iterator[Figure]:
    """Frames/s by number of agents."""
    for row in result["rows"]:
        compared_with = "goal 50,000; 66,300 on two CPU threads"
        yield Figure(f"{row['agents']} agents, {result['pixels']} px", row["frames_per_s"], "frames/s", compared_with)


def snakes_figures(result: dict[str, Any]) -> Iterator[Figure]:
    """Board steps/s of the rules alone and of the environment with observations."""
    for row in result["table"]:
        compared_with = "13,700,000 on one CPU core" if row["what"] == "engine" else "215,000 on two CPU threads"
        yield Figure(f"{row['what']}, {row['boards']} boards", row["moves_per_second"], "board steps/s", compared_with)


def test_figures(result: dict[str, Any]) -> Iterator[Figure]:
    """Number of tests by outcome."""
    counts = f"{result['failed']} failed, {result['skipped']} skipped"
    yield Figure("GPU tests passed", result["passed"], "tests", counts)


def launch_figures(result: dict[str, Any]) -> Iterator[Figure]:
    """Share of time in the account `launch`, compared with the profiler's trace."""
    for row in result["rows"]:
        plain = row["profiler_kernels_over_unprofiled_wall"]
        compared_with = f"torch.profiler {100 * row['profiler']:.0f} %, without its slowdown {100 * plain:.0f} %"
        yield Figure(f"launch, batch {row['batch']}", 100 * row["ledger"], "%", compared_with)


CPU = ("--device", "cpu")
STEPS = (
    Step(
        "machine",
        20,
        ("benchmarks/gpu/machine.py",),
        ("benchmarks/gpu/machine.py",),
        ("torch", "numpy"),
        figures=machine_figures,
    ),
    Step(
        "sac",
        40,
        ("benchmarks/updates/sac_graphs.py", *"--updates 200 --rounds 3".split()),
        (
            "benchmarks/updates/sac_graphs.py",
            *CPU,
            *"--batches 256 --precisions fp32 --rounds 1 --updates 2 --k 2".split(),
        ),
        ("torch", "numpy"),
        figures=sac_figures,
    ),
    Step(
        "rdt",
        85,
        ("benchmarks/updates/rdt_features.py", *"--models rdt-1b --ledger --rounds 3".split()),
        (
            "benchmarks/updates/rdt_features.py",
            *"--models rdt-tiny --ledger --rows 1 --recorded 1 --repeats 1 --rounds 1 --steps 1".split(),
        ),
        ("torch", "numpy", "accelerate", "diffusers", *DIFFUSERS_NEEDS),
        figures=rdt_figures,
    ),
    Step(
        "uav",
        30,
        ("benchmarks/environments/uav_env.py", *"--device cuda --missions 64 512 4096 --seconds 2".split()),
        ("benchmarks/environments/uav_env.py", *CPU, *"--missions 1 --seconds 0.1".split()),
        NUMBA,
        ("numba_cuda",),
        uav_figures,
    ),
    Step(
        "sketchnav",
        35,
        ("benchmarks/environments/sketchnav_env.py", *"--device cuda --agents 128 1024 8192".split()),
        ("benchmarks/environments/sketchnav_env.py", *CPU, *"--agents 2 --seconds 0.1".split()),
        (*NUMBA, "PIL"),
        ("numba_cuda",),
        sketchnav_figures,
    ),
    Step(
        "snakes",
        35,
        ("benchmarks/environments/snakes_env.py", *"--device cuda --table-boards 4096 65536".split()),
        ("benchmarks/environments/snakes_env.py", *CPU, *"--table-boards 8 --seconds 0.1".split()),
        NUMBA,
        ("numba_cuda",),
        snakes_figures,
    ),
    Step(
        "tests",
        170,
        ("benchmarks/gpu/gpu_tests.py",),
        ("benchmarks/gpu/gpu_tests.py", "--processes", "1"),
        (*NUMBA, "pytest"),
        figures=test_figures,
    ),
    Step(
        "launch account",
        25,
        ("benchmarks/diagnosis/launch_account.py", *"--updates 50".split()),
        ("benchmarks/diagnosis/launch_account.py", *CPU, *"--batches 32 --updates 2".split()),
        ("torch", "numpy"),
        figures=launch_figures,
    ),
    Step(
        "sac compiled",
        70,
        ("benchmarks/updates/sac_graphs.py", *"--modes compiled --precisions bf16 --updates 1000 --rounds 3".split()),
        ("benchmarks/updates/sac_graphs.py", *CPU, *"--modes compiled --precisions bf16".split()),
        ("torch", "numpy"),
        ("triton",),
        sac_figures,
    ),
)


def wheels_step(wheels: str, packages: str) -> Step:
    """Creates the step that installs all wheels of a folder, without a network, into the folder `packages`."""
    command = ("benchmarks/gpu/install_wheels.py", wheels, packages)
    return Step("wheels", 30, command, command)
