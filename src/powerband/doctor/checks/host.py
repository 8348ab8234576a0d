"""Section host of ``powerband doctor``: checks cores, threads, bytecode, memory, files, disk and versions."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from powerband.core.machine.device import CGROUP, affinity_cores, cpu_quota
from powerband.doctor.check_result import CheckResult, fail, ok, warn
from powerband.doctor.checks.package_versions import versions_row
from powerband.doctor.context import Check, CheckContext

DEFAULT_SHM = 64 * 2**20
"""Bytes of /dev/shm in a container without --shm-size."""
LOW_OPEN_FILES = 4096
LOW_DISK_GIB = 5.0
SLOW_FSYNC_MS = 100.0
LOW_MEMORY_GIB = 4.0
COMPILED_BYTES, SLOW_START_S = 2**20, 0.5
"""Size of the sources that are compiled to estimate the time of all, and the estimate in seconds that is too long."""


def checks(context: CheckContext) -> list[Check]:
    """Returns the checks of this section, in the order of the table."""
    return [
        ("cores", cores_row),
        ("threads", threads_row),
        ("bytecode", bytecode_row),
        ("/dev/shm", shm_row),
        ("open files", files_row),
        ("disk", lambda: disk_row(context.run_folder)),
        ("memory", memory_row),
        ("versions", versions_row),
    ]


def cores_row(cgroup: Path = CGROUP) -> CheckResult:
    """Compares the cores of the machine with the limits of CPU affinity and of the container's quota.

    Args:
        cgroup: Folder of the container's control group.
    """
    machine = os.cpu_count() or 1
    affinity = affinity_cores()
    quota = cpu_quota(cgroup)
    text = f"{machine} in the machine, {affinity} by affinity, quota {'none' if quota is None else f'{quota:g} cores'}"
    metrics = {"machine": machine, "affinity": affinity, "quota_cores": quota}
    usable = min(affinity, quota or affinity)
    if usable < machine:
        return warn(
            "cores",
            text,
            f"os.cpu_count() returns {machine}, but only {usable:g} cores are usable, so libraries start too many "
            "threads. Set OMP_NUM_THREADS, or give the container more cores with --cpus.",
            **metrics,
        )
    return ok("cores", text, **metrics)


def threads_row() -> CheckResult:
    """Reports the threads of a training process and the environment variables that decide them."""
    import torch

    from powerband.core.machine.device import cores

    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_WAIT_POLICY")
    variables = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    count, usable = torch.get_num_threads(), cores()
    text = f"torch {count}, numba {_numba_threads()}; {', '.join(variables) or 'no variable is set'}"
    metrics = {"torch": count, "interop": torch.get_num_interop_threads(), "usable_cores": usable}
    if count > usable:
        return warn(
            "threads",
            text,
            f"{count} threads compete for {usable} cores: set OMP_NUM_THREADS={usable} or threads={usable}.",
            **metrics,
        )
    if os.environ.get("OMP_WAIT_POLICY", "passive").lower() != "passive":
        return warn(
            "threads",
            text,
            "Idle threads spin and take cores from the simulators: set OMP_WAIT_POLICY=passive.",
            **metrics,
        )
    if count < usable:
        text += f"; {usable - count} of {usable} cores are free for other processes"
    return ok("threads", text, **metrics)


def _numba_threads() -> int:
    setting = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(setting) if setting.isdigit() else affinity_cores()


def bytecode_row(modules: Iterable[ModuleType] | None = None) -> CheckResult:
    """Checks whether Python stores the bytecode of imported modules, or each process compiles their sources again.

    Args:
        modules: Modules to check; None takes those that this process has imported, among them torch.
    """
    if modules is None:
        import torch  # noqa: F401 (the largest package of a training process)

        modules = list(sys.modules.values())
    paths = dict(pair for module in modules if (pair := _source_and_cache(module)))
    missing = [path for path, cache in paths.items() if not os.path.exists(cache)]
    text = f"stored for {len(paths) - len(missing)} of {len(paths)} imported modules"
    seconds = _compilation_s(missing)
    metrics = {"modules": len(paths), "without": len(missing), "compilation_s": round(seconds, 2)}
    if seconds < SLOW_START_S:
        return ok("bytecode", text, **metrics)
    why = (
        "PYTHONDONTWRITEBYTECODE is set: unset it, or"
        if sys.dont_write_bytecode
        else "If a second run of doctor says the same, the packages are in a folder that you cannot write to:"
    )
    return warn(
        "bytecode",
        f"{text}; compiling the others takes about {seconds:.1f} s in each process",
        f"{why} run python -m compileall -q {shlex.quote(sysconfig.get_path('purelib'))} once.",
        **metrics,
    )


def _source_and_cache(module: ModuleType) -> tuple[str, str] | None:
    """Returns the paths of a module's source and of its bytecode; None for a module without one of them."""
    source, cache = getattr(module, "__file__", None), getattr(getattr(module, "__spec__", None), "cached", None)
    return (source, cache) if isinstance(source, str) and isinstance(cache, str) else None


def _compilation_s(paths: Sequence[str]) -> float:
    """Estimates the processor seconds that Python needs to compile source files, from some of them."""
    sizes = {path: os.path.getsize(path) for path in paths if os.path.exists(path)}
    done, started = 0, time.thread_time()
    for path, size in sizes.items():
        if done >= COMPILED_BYTES:
            break
        compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        done += size
    seconds = time.thread_time() - started
    return seconds * sum(sizes.values()) / done if done else 0.0


def shm_row(path: str = "/dev/shm") -> CheckResult:
    """Checks the size of the shared memory that data loaders and NCCL use."""
    try:
        stat = os.statvfs(path)
    except OSError as error:
        return warn(
            "/dev/shm",
            f"cannot be read ({error.strerror})",
            "Mount a tmpfs there (container: --shm-size=8g).",
        )
    total, free = stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail
    text = f"{_size(total)}, {_size(free)} free"
    metrics = {"total_mib": round(total / 2**20, 1), "free_mib": round(free / 2**20, 1)}
    if total <= DEFAULT_SHM:
        return warn(
            "/dev/shm",
            text,
            "Start the container with --shm-size=8g or --ipc=host. Data loaders and NCCL keep buffers there and "
            "die of a bus error when it is full.",
            **metrics,
        )
    if free < DEFAULT_SHM:
        return warn("/dev/shm", text, "Delete files of dead processes from /dev/shm.", **metrics)
    return ok("/dev/shm", text, **metrics)


def files_row() -> CheckResult:
    """Checks the limit of open files and sockets per process."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    metrics = {"soft": soft, "hard": hard}
    if soft < LOW_OPEN_FILES:
        return warn(
            "open files",
            f"{soft} (may be raised to {hard})",
            f"Many worker processes need more: run ulimit -n {min(hard, 65536)}.",
            **metrics,
        )
    return ok("open files", f"{soft} (hard limit {hard})", **metrics)


def disk_row(folder: Path) -> CheckResult:
    """Measures free space, write speed and fsync time of a disk.

    Args:
        folder: Folder on this disk, such as that of the run folders; it need not exist.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free_gib = shutil.disk_usage(existing).free / 2**30
    try:
        rate, fsync_ms = _write_speed(existing)
    except OSError as error:
        return fail(
            "disk",
            f"{existing} cannot be written ({error.strerror}), {free_gib:.1f} GiB free",
            "Choose another run_dir, or free space on this disk.",
            free_gib=round(free_gib, 1),
        )
    text = f"{existing}: {free_gib:.1f} GiB free, {rate:,.0f} MB/s written, {fsync_ms:.1f} ms per fsync"
    metrics = {"free_gib": round(free_gib, 1), "write_mb_s": round(rate, 1), "fsync_ms": round(fsync_ms, 2)}
    if free_gib < LOW_DISK_GIB:
        return warn(
            "disk",
            text,
            "A checkpoint with a replay buffer needs gigabytes: free space, or choose another run_dir.",
            **metrics,
        )
    if fsync_ms > SLOW_FSYNC_MS:
        return warn(
            "disk",
            text,
            "Checkpoints wait for this disk: put run_dir on a local disk, or raise save_interval.",
            **metrics,
        )
    return ok("disk", text, **metrics)


def _write_speed(folder: Path) -> tuple[float, float]:
    """Returns (MB/s of writing 64 MiB with a final fsync, median milliseconds of an fsync of 4 KiB)."""
    block = os.urandom(2**20)
    with tempfile.TemporaryFile(dir=folder) as file:
        started = time.perf_counter()
        for _ in range(64):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - started
        times = []
        for _ in range(5):
            file.write(block[:4096])
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return 64 * 2**20 / seconds / 1e6, sorted(times)[2] * 1e3


def memory_row(cgroup: Path = CGROUP, meminfo: Path = Path("/proc/meminfo")) -> CheckResult:
    """Checks total and free memory of the machine and the container's limit.

    Args:
        cgroup: Folder of the container's control group.
        meminfo: File with the memory of the machine (Linux).
    """
    try:
        facts = dict(re.findall(r"^(\w+):\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE))
    except OSError:  # no Linux
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        return ok("memory", f"{total:.1f} GiB; free memory is known on Linux only", total_gib=round(total, 1))
    total, free = int(facts["MemTotal"]) / 2**20, int(facts["MemAvailable"]) / 2**20
    limit = memory_limit_gib(cgroup, total)
    text = f"{total:.1f} GiB, {free:.1f} free, container limit {'none' if limit is None else f'{limit:.1f} GiB'}"
    metrics = {"total_gib": round(total, 1), "free_gib": round(free, 1), "limit_gib": limit and round(limit, 1)}
    if min(free, limit or free) < LOW_MEMORY_GIB:
        return warn(
            "memory",
            text,
            "This is little memory for replay buffer and simulators: lower replay_size and num_envs, or raise the "
            "container's limit with --memory.",
            **metrics,
        )
    return ok("memory", text, **metrics)


def memory_limit_gib(cgroup: Path, total_gib: float) -> float | None:
    """Returns the memory limit of the container's control group (cgroup version 2 or 1).

    Args:
        cgroup: Folder of the control group.
        total_gib: Memory of the machine in GiB.

    Returns:
        Limit in GiB; None if it is missing or not below `total_gib`.
    """
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = int((cgroup / name).read_text()) / 2**30
        except (OSError, ValueError):
            continue
        return limit if limit < total_gib else None
    return None


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
