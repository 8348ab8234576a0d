"""Devices: what the word ``gpus`` means on this machine, how many threads a rank has, and what machine this is."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from powerband.core.config.run_config import RunConfig
from powerband.core.errors import ConfigError


def device_names(settings: RunConfig) -> list[str]:
    """One device a rank of this machine, ``["cuda:0", "cuda:2"]``; ``["cpu"]`` serves any number of CPU ranks.

    Indices count inside CUDA_VISIBLE_DEVICES, as everywhere in torch. Where a launcher has started ranks already,
    their number must be the number of devices.

    Raises:
        ConfigError: A GPU that is not there, one named twice, or a number of ranks that does not fit.
    """
    word = settings.gpus.replace(" ", "").removesuffix(",")
    if word.startswith("cuda"):
        word = word.removeprefix("cuda").removeprefix(":") or "0"
    if word in ("none", "cpu"):
        return ["cpu"]
    count = _gpu_count()
    started = int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    if word == "auto":
        wanted = started or settings.nproc
        if count == 0:
            return ["cpu"]
        if wanted > count:
            raise ConfigError(
                f"{wanted} ranks need {wanted} GPUs and {_seen(count)}. "
                f"Write nproc={count}, or gpus=none nproc={wanted} for CPU ranks."
            )
        return [f"cuda:{index}" for index in range(wanted)]
    indices = list(range(count)) if word == "all" else [int(part) for part in word.split(",")]
    missing = [index for index in indices if index >= count]
    if missing or not indices:
        fix = "Name GPUs that are there, or write" if count else "Write"
        raise ConfigError(
            f"gpus={settings.gpus}: {_seen(count)}. {fix} gpus=none nproc={max(len(indices), 1)} for CPU ranks."
        )
    if len(set(indices)) < len(indices):
        raise ConfigError(f"gpus={settings.gpus} names a GPU twice; a rank has a GPU of its own. Name each once.")
    ranks = started or (settings.nproc if settings.nproc > 1 else len(indices))
    if ranks != len(indices):
        who = "the launcher started" if started else f"nproc={settings.nproc} asks for"
        raise ConfigError(
            f"gpus={settings.gpus} is {len(indices)} GPUs, one rank each, and {who} {ranks} ranks on this machine. "
            "Make the two numbers equal, or leave one of them out."
        )
    return [f"cuda:{index}" for index in indices]


def ranks_on_this_machine(settings: RunConfig) -> int:
    """Ranks that this machine is asked to run."""
    names = device_names(settings)
    return settings.nproc if names == ["cpu"] else len(names)


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _seen(count: int) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    scope = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    if count == 0:
        return f"torch sees no GPU here{scope}"
    return f"torch sees {count} GPU{'s' if count > 1 else ''} here, 0 to {count - 1}{scope}"


def cores() -> int:
    """CPU cores that this process may use: its affinity, and a container's quota where there is one."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control group of the second version, or "max": no quota
    return count


SIMD = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "neon", "asimd")
"""Vector instructions that matter for matrix products."""


def simd(cpuinfo: Path) -> list[str]:
    """Names of `SIMD` among the processor's flags; none where they cannot be read."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return []
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    return [name for name in SIMD if name in flags]


def emulates_bf16(has: list[str]) -> bool:
    """Whether bf16 is emulated by a processor with the instructions `simd` found: products take up to hundreds of
    times those in fp32 (212 times on an EPYC without AVX512-BF16). An unknown processor is not blamed."""
    return "avx2" in has and not {"avx512_bf16", "amx_bf16"} & set(has)


def threads_per_rank(threads: int, ranks: int) -> int:
    """CPU threads of one of `ranks` ranks on this machine; `threads` where it is not 0.

    OMP_NUM_THREADS speaks where the user could have set it: torchrun sets it to 1 for ranks it starts.
    """
    if threads:
        return threads
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdigit() and int(said) > 0 and "RANK" not in os.environ:
        return int(said)
    return max(1, cores() // ranks)


OPENMP_WAIT_VARIABLES = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}
"""How torch's threads wait for work: they look for it for some 50 us, then sleep.

Threads that spin for milliseconds take the cores from simulator workers; threads that sleep at once are woken some
hundred times an update, and two of them were slower than one (an update of DDPG, 512 teams: 15 ms spinning, 17 looking
for a while, 28 asleep, 21 on one thread; whole runs 1.3 to 1.9 times as fast as asleep: `benchmarks/waiting.py`).
"""


def thread_environment(threads: int, ranks: int) -> dict[str, str]:
    """Environment variables for a process that has not imported torch or numba yet."""
    count = str(threads_per_rank(threads, ranks))
    return {"OMP_NUM_THREADS": count, "NUMBA_NUM_THREADS": count, **OPENMP_WAIT_VARIABLES}


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = {M_MMAP_THRESHOLD: 2**30, M_TRIM_THRESHOLD: 2**31 - 1}
"""Options of glibc's mallopt: blocks up to a GiB come from the heap, and the heap is not given back."""


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that it frees; False where glibc is not there or a MALLOC_ variable is set.

    By default glibc hands large blocks back at once, and the kernel clears each page anew when an update asks for them
    again: 1.4 million page faults in 3 s of DDPG with batch 4096 on two threads, 105 env steps/s in place of 160
    (`benchmarks/kept_memory.py`). GPU memory is torch's own matter and not touched.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(option, value) == 1 for option, value in KEPT.items()])


def set_backend_flags(settings: RunConfig) -> str:
    """Sets what torch may trade for speed, as the run says, and returns a line about it for the banner."""
    import torch

    cudnn = torch.backends.cudnn
    torch.backends.cuda.matmul.allow_tf32 = cudnn.allow_tf32 = settings.tf32
    cudnn.deterministic = settings.cudnn_deterministic
    cudnn.benchmark = settings.cudnn_benchmark and not settings.cudnn_deterministic
    torch.autograd.set_detect_anomaly(settings.detect_anomaly)
    words = {"TF32": settings.tf32, "cuDNN benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    words["anomaly detection"] = settings.detect_anomaly
    return ", ".join(f"{name} {'on' if value else 'off'}" for name, value in words.items())


def set_threads(threads: int, ranks: int) -> int:
    """Gives this process its share of the cores, in torch and numba, and returns it.

    Args:
        threads: Threads of this rank, 0 for an equal share of the cores.
        ranks: All ranks of the run; those of this machine are counted by LOCAL_WORLD_SIZE where a launcher says it.
    """
    import torch

    count = threads_per_rank(threads, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    if "numba" in sys.modules:
        import numba

        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    else:
        os.environ["NUMBA_NUM_THREADS"] = str(count)
    torch.set_num_threads(count)  # last: numba's first threads may start in the OpenMP that is torch's too
    os.environ["OMP_NUM_THREADS"] = str(count)  # for worker processes
    return count


def host_facts() -> dict[str, Any]:
    """What machine this is: processor, memory, versions, GPUs and the switches that change figures."""
    import torch

    facts: dict[str, Any] = {
        "hostname": platform.node(),
        "cpu": _proc_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "memory_gib": round(int((_proc_value("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpus": [],
    }
    if _gpu_count():
        facts["driver"] = _driver()
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        facts["tf32_matmul"] = torch.backends.cuda.matmul.allow_tf32
        facts["tf32_cudnn"] = torch.backends.cudnn.allow_tf32
        for index in range(_gpu_count()):
            gpu = torch.cuda.get_device_properties(index)
            memory = round(gpu.total_memory / 2**30, 1)
            facts["gpus"].append({"name": gpu.name, "memory_gib": memory, "capability": f"{gpu.major}.{gpu.minor}"})
    return facts


def _proc_value(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def _driver() -> str | None:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), None)
