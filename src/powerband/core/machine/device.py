"""Devices: the GPUs and CPU threads of each rank, backend settings of torch, and facts about the machine."""

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
    """Names one device per rank of this machine, such as ``["cuda:0", "cuda:2"]``, or ``["cpu"]`` for all CPU ranks.

    Indices count within CUDA_VISIBLE_DEVICES, as everywhere in torch. If a launcher has started the ranks, their
    number must equal the number of devices.

    Raises:
        ConfigError: A GPU does not exist or is named twice, or the number of ranks differs from the number of GPUs.
    """
    gpus = settings.gpus.replace(" ", "").removesuffix(",")
    if gpus.startswith("cuda"):
        gpus = gpus.removeprefix("cuda").removeprefix(":") or "0"
    if gpus in ("none", "cpu"):
        return ["cpu"]
    count = _gpu_count()
    started = int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    if gpus == "auto":
        wanted = started or settings.nproc
        if count == 0:
            return ["cpu"]
        if wanted > count == 1 and bound_by_slurm():  # each task sees its own GPU alone (--gpus-per-task=1)
            return ["cuda:0"] * wanted
        if wanted > count:
            fix = f"Write nproc={count}, or gpus=none nproc={wanted} for CPU ranks."
            if started:
                fix = f"Start {count} processes per machine, or write gpus=none for CPU ranks."
            raise ConfigError(f"{wanted} ranks require {wanted} GPUs, but {_describe_gpus(count)}. {fix}")
        return [f"cuda:{index}" for index in range(wanted)]
    indices = list(range(count)) if gpus == "all" else [int(part) for part in gpus.split(",")]
    missing = [index for index in indices if index >= count]
    if missing or not indices:
        fix = "Name available GPUs, or write" if count else "Write"
        fix += f" gpus=none nproc={max(len(indices), 1)} for CPU ranks."
        raise ConfigError(f"gpus={settings.gpus}: {_describe_gpus(count)}. {fix}")
    if len(set(indices)) < len(indices):
        raise ConfigError(
            f"gpus={settings.gpus} names a GPU twice, but each rank requires its own. Name each GPU once."
        )
    ranks = started or (settings.nproc if settings.nproc > 1 else len(indices))
    if ranks != len(indices):
        origin = "the launcher started" if started else f"nproc={settings.nproc} requests"
        raise ConfigError(
            f"gpus={settings.gpus} selects {len(indices)} GPUs for one rank each, but {origin} {ranks} ranks on this "
            "machine. Make the two numbers equal, or leave one option out."
        )
    return [f"cuda:{index}" for index in indices]


def ranks_on_this_machine(settings: RunConfig) -> int:
    """Number of ranks that the settings request on this machine."""
    names = device_names(settings)
    return settings.nproc if names == ["cpu"] else len(names)


def expected_ranks(settings: RunConfig) -> int:
    """Number of ranks of the complete run, before anything is checked: of a launcher, or as the settings request.

    GPUs are counted for ``gpus=all`` only, so that other settings need no torch.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ and ":" not in settings.nnodes:
        return int(os.environ["WORLD_SIZE"])  # a range counts its largest number always, so that sizes stay
    gpus = settings.gpus.replace(" ", "").removesuffix(",")
    here = max(1, _gpu_count()) if gpus == "all" else max(settings.nproc, gpus.count(",") + 1)
    return here * int(settings.nnodes.split(":")[-1])


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _describe_gpus(count: int) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    scope = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    if count == 0:
        return f"torch finds no GPU on this machine{scope}"
    return f"torch finds {count} GPU{'s' if count > 1 else ''} on this machine, 0 to {count - 1}{scope}"


CGROUP = Path("/sys/fs/cgroup")
"""Folder of this process's control group, as a container sees it."""


def cores() -> int:
    """CPU cores available to this process: its affinity, limited by the quota of a container."""
    quota = cpu_quota(CGROUP)
    return affinity_cores() if quota is None else min(affinity_cores(), max(1, int(quota)))


def affinity_cores() -> int:
    """CPU cores on which this process may run, without the quota of a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(cgroup: Path) -> float | None:
    """Returns the number of cores that the container may use; None without a limit.

    Args:
        cgroup: Folder of the container's control group, version 2 or 1.
    """
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()[:2]
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((cgroup / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def bound_by_slurm() -> bool:
    """True if srun has started this process as a rank, without a launcher of torch in between."""
    return "RANK" in os.environ and "SLURM_PROCID" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ


def cores_per_rank(ranks: int = 0) -> int:
    """CPU cores for one rank (process of the training): an equal share of `cores`, at least 1.

    Tasks of srun with ``--cpus-per-task`` are bound to their own cores, which are not shared.

    Args:
        ranks: Number of ranks on this machine; 0 means that of the launcher.
    """
    own = cores()
    per_task = os.environ.get("SLURM_CPUS_PER_TASK", "") if bound_by_slurm() else ""
    if per_task.isdigit() and own <= int(per_task):
        return own
    return max(1, own // (ranks or int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


SIMD = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "neon", "asimd")
"""Vector instructions that are relevant for matrix products."""


def simd(cpuinfo: Path) -> list[str]:
    """Vector instruction sets of the processor, out of the known ones in `SIMD` such as avx2 and avx512_bf16.

    `cpuinfo` is the path of ``/proc/cpuinfo``. The list is empty if it cannot be read.
    """
    try:
        text = cpuinfo.read_text()
    except OSError:
        return []
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    return [name for name in SIMD if name in flags]


def emulates_bf16(instructions: list[str]) -> bool:
    """True if the processor with these `instructions`, a result of `simd`, emulates bf16; False if it is unknown.

    Emulation can be hundreds of times slower than fp32: 212 times for a matrix product on an EPYC without AVX512-BF16.
    """
    return "avx2" in instructions and not {"avx512_bf16", "amx_bf16"} & set(instructions)


def this_cpu_emulates_bf16() -> bool:
    """`emulates_bf16` of the processor of this machine."""
    return emulates_bf16(simd(Path("/proc/cpuinfo")))


def threads_per_rank(threads: int, ranks: int) -> int:
    """Number of CPU threads for each of `ranks` ranks on this machine.

    It is `threads`, or an equal share of the cores if `threads` is 0. The environment variable OMP_NUM_THREADS replaces
    the equal share, except in ranks of a launcher, because torchrun sets the variable to 1 there.
    """
    if threads:
        return threads
    omp_threads = os.environ.get("OMP_NUM_THREADS", "")
    if omp_threads.isdigit() and int(omp_threads) > 0 and "RANK" not in os.environ:
        return int(omp_threads)
    return cores_per_rank(ranks)


OPENMP_WAIT_VARIABLES = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}
"""OpenMP settings that let torch's threads spin for about 50 us before they sleep.

Threads that spin for milliseconds take the cores from simulator workers. Threads that sleep at once are woken about a
hundred times per update: an update of DDPG with 512 teams took 28 ms on two threads and 21 ms on one thread. It took
15 ms with spinning threads and 17 ms with these settings. Runs with these settings were 1.3 to 1.9 times as fast as
with threads that sleep at once (`benchmarks/training/waiting.py`).
"""


def thread_environment(threads: int, ranks: int) -> dict[str, str]:
    """Environment variables that limit the threads of a process. Set them before the process imports torch or numba.

    Args:
        threads: Threads of a rank; 0 means an equal share of the cores.
        ranks: Number of ranks on this machine.
    """
    count = str(threads_per_rank(threads, ranks))
    return {"OMP_NUM_THREADS": count, "NUMBA_NUM_THREADS": count, **OPENMP_WAIT_VARIABLES}


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MALLOC_OPTIONS = {M_MMAP_THRESHOLD: 2**30, M_TRIM_THRESHOLD: 2**31 - 1}
"""Options of glibc's mallopt: blocks up to 1 GiB come from the heap, and the heap is not returned to the kernel."""


def keep_freed_memory() -> bool:
    """Configures glibc to reuse freed memory. Returns True, or False without glibc or if a MALLOC_ variable is set.

    By default glibc returns large blocks to the kernel, which clears their pages at the next allocation. In DDPG with
    batch 4096 on two threads this caused 1.4 million page faults in 3 s, and lowered the rate from 160 to 105
    env steps/s (`benchmarks/training/kept_memory.py`). Torch manages GPU memory itself.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(option, value) == 1 for option, value in MALLOC_OPTIONS.items()])


def set_backend_flags(settings: RunConfig) -> str:
    """Sets TF32, cuDNN and anomaly detection of torch from the settings.

    Returns:
        One line that lists each flag with on or off, for the banner that a run prints at its start.
    """
    import torch

    cudnn = torch.backends.cudnn
    torch.backends.cuda.matmul.allow_tf32 = cudnn.allow_tf32 = settings.tf32
    cudnn.deterministic = settings.cudnn_deterministic
    cudnn.benchmark = settings.cudnn_benchmark and not settings.cudnn_deterministic
    torch.autograd.set_detect_anomaly(settings.detect_anomaly)
    flags = {"TF32": settings.tf32, "cuDNN benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    flags["anomaly detection"] = settings.detect_anomaly
    return ", ".join(f"{name} {'on' if value else 'off'}" for name, value in flags.items())


def set_threads(threads: int, ranks: int) -> int:
    """Sets the number of CPU threads of this process, in torch and numba, and returns it.

    Args:
        threads: Threads of this rank, 0 for an equal share of the cores.
        ranks: Number of ranks of the run. If a launcher has set LOCAL_WORLD_SIZE, the number of ranks on this machine,
            that number is used instead.
    """
    import torch

    count = threads_per_rank(threads, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    if "numba" in sys.modules:
        import numba

        limit = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # numba sets it while it is imported
        numba.set_num_threads(min(count, limit))
    else:
        os.environ["NUMBA_NUM_THREADS"] = str(count)
    torch.set_num_threads(count)  # last, because numba may share torch's OpenMP and set its threads
    os.environ["OMP_NUM_THREADS"] = str(count)  # for worker processes
    return count


def host_facts() -> dict[str, Any]:
    """Describes this machine, for the results of measurements.

    Returns:
        ``hostname``, ``cpu`` (name of the processor), ``cores`` (number), ``memory_gib``, ``cuda_visible_devices``,
        the versions ``python``, ``torch`` and ``cuda``, and ``gpus``: a list of dicts with ``name``, ``memory_gib`` and
        ``capability``. On a machine with GPUs also ``driver`` and ``cudnn`` (versions), and the flags
        ``cudnn_benchmark``, ``tf32_matmul`` and ``tf32_cudnn``. Unknown values are None, "" or 0.
    """
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
        parts = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((part for part in parts if part.count(".") >= 1 and part[0].isdigit()), None)
