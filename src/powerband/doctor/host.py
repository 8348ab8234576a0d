"""Section host: threads, shared memory, files, disk, memory and versions of the machine that feeds the trainer."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from powerband.doctor.row import Row, fail, ok, skipped, warn
from powerband.doctor.scope import Check, Scope

CGROUP = Path("/sys/fs/cgroup")
DEFAULT_SHM = 64 * 2**20
"""What a container gets where nobody asks for more."""
FEW_FILES = 4096
LITTLE_DISK_GIB = 5.0
SLOW_FSYNC_MS = 100.0
LITTLE_MEMORY_GIB = 4.0


def checks(scope: Scope) -> list[Check]:
    """All of the host."""
    return [
        ("cores", cores_row),
        ("threads", threads_row),
        ("/dev/shm", shm_row),
        ("open files", files_row),
        ("disk", lambda: disk_row(scope.run_folder)),
        ("memory", memory_row),
        ("versions", versions_row),
    ]


def cores_row(cgroup: Path = CGROUP) -> Row:
    """Cores of the machine, and what affinity and a container's quota leave of them."""
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    quota = cpu_quota(cgroup)
    text = f"{machine} in the machine, {affinity} by affinity, quota {'none' if quota is None else f'{quota:g} cores'}"
    figures = {"machine": machine, "affinity": affinity, "quota_cores": quota}
    usable = min(affinity, quota or affinity)
    if usable < machine:
        return warn(
            "cores",
            text,
            f"os.cpu_count says {machine} and {usable:g} may be used: libraries that size "
            "themselves by it start too many threads, so set OMP_NUM_THREADS, or give the container more "
            "(--cpus).",
            **figures,
        )
    return ok("cores", text, **figures)


def cpu_quota(cgroup: Path) -> float | None:
    """Cores that the container's control group allows (version 2 or 1); None where it sets no limit."""
    try:
        words = (cgroup / "cpu.max").read_text().split()
        return None if words[0] == "max" else int(words[0]) / int(words[1])
    except (OSError, ValueError, IndexError):
        pass
    try:
        quota = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((cgroup / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def threads_row() -> Row:
    """Threads that a training process would use, and the variables that decide it."""
    import torch

    from powerband.core.device import cores

    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_WAIT_POLICY")
    said = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    count, usable = torch.get_num_threads(), cores()
    text = f"torch {count}, numba {_numba_threads()}; {', '.join(said) or 'no variable is set'}"
    figures = {"torch": count, "interop": torch.get_num_interop_threads(), "usable_cores": usable}
    if count > usable:
        return warn(
            "threads",
            text,
            f"{count} threads on {usable} cores take turns: set OMP_NUM_THREADS={usable}, or threads={usable}.",
            **figures,
        )
    if os.environ.get("OMP_WAIT_POLICY", "passive").lower() != "passive":
        return warn(
            "threads",
            text,
            "Waiting threads spin and take the cores from simulators: set OMP_WAIT_POLICY=passive.",
            **figures,
        )
    if count < usable:
        text += f"; {usable - count} of {usable} cores are left to others"
    return ok("threads", text, **figures)


def _numba_threads() -> int | str:
    said = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(said) if said.isdigit() else len(os.sched_getaffinity(0))


def shm_row(path: str = "/dev/shm") -> Row:
    """Size of the shared memory that data loaders and rank-to-rank buffers need."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return warn("/dev/shm", f"cannot be read ({error.strerror})", "Mount a tmpfs there (container: --shm-size=8g).")
    total, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    text = f"{_size(total)}, {_size(free)} free"
    figures = {"total_mib": round(total / 2**20, 1), "free_mib": round(free / 2**20, 1)}
    if total <= DEFAULT_SHM:
        return warn(
            "/dev/shm",
            text,
            "Start the container with --shm-size=8g (or --ipc=host): loader processes and "
            "NCCL keep their buffers there and end with a bus error when it is full.",
            **figures,
        )
    if free < DEFAULT_SHM:
        return warn("/dev/shm", text, "Delete what ended processes left in /dev/shm.", **figures)
    return ok("/dev/shm", text, **figures)


def files_row() -> Row:
    """How many files and sockets a process may hold open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    figures = {"soft": soft, "hard": hard}
    if soft < FEW_FILES:
        return warn(
            "open files",
            f"{soft} (may be raised to {hard})",
            f"Many worker processes need more: ulimit -n {min(hard, 65536)}.",
            **figures,
        )
    return ok("open files", f"{soft} (hard limit {hard})", **figures)


def disk_row(folder: Path) -> Row:
    """Space and speed of the disk under the run folder: 64 MiB written, and one small fsync."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free_gib = shutil.disk_usage(there).free / 2**30
    try:
        rate, fsync_ms = _write_speed(there)
    except OSError as error:
        return fail(
            "disk",
            f"{there} cannot be written ({error.strerror}), {free_gib:.1f} GiB free",
            "Choose another run_dir, or free space.",
            free_gib=round(free_gib, 1),
        )
    text = f"{there}: {free_gib:.1f} GiB free, {rate:,.0f} MB/s written, {fsync_ms:.1f} ms an fsync"
    figures = {"free_gib": round(free_gib, 1), "write_mb_s": round(rate, 1), "fsync_ms": round(fsync_ms, 2)}
    if free_gib < LITTLE_DISK_GIB:
        return warn(
            "disk", text, "Checkpoints with replay take gigabytes: free space, or choose another run_dir.", **figures
        )
    if fsync_ms > SLOW_FSYNC_MS:
        return warn(
            "disk", text, "Saving waits for this disk: put run_dir on a local one, or raise save_interval.", **figures
        )
    return ok("disk", text, **figures)


def _write_speed(folder: Path) -> tuple[float, float]:
    """(MB/s of 64 MiB with the fsync at their end, median milliseconds of an fsync of 4 KiB)."""
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


def memory_row(cgroup: Path = CGROUP) -> Row:
    """Memory of the machine, what is free of it, and the container's limit."""
    facts = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    total, free = int(facts["MemTotal"]) / 2**20, int(facts["MemAvailable"]) / 2**20
    limit = memory_limit_gib(cgroup, total)
    text = f"{total:.1f} GiB, {free:.1f} free, container limit {'none' if limit is None else f'{limit:.1f} GiB'}"
    figures = {"total_gib": round(total, 1), "free_gib": round(free, 1), "limit_gib": limit and round(limit, 1)}
    if min(free, limit or free) < LITTLE_MEMORY_GIB:
        return warn(
            "memory",
            text,
            "Little for replay and simulators: lower replay_size and num_envs, or raise the "
            "container's limit (--memory).",
            **figures,
        )
    return ok("memory", text, **figures)


def memory_limit_gib(cgroup: Path, total_gib: float) -> float | None:
    """GiB that the container's control group allows (version 2 or 1); None where that is more than there is."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = int((cgroup / name).read_text()) / 2**30
        except (OSError, ValueError):
            continue
        return limit if limit < total_gib else None
    return None


def versions_row() -> Row:
    """Python and the packages against what this version of powerband admits."""
    try:
        wanted, python = metadata.requires("powerband") or [], metadata.metadata("powerband")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return skipped("versions", "powerband runs from its source tree and is not installed", "Run pip install -e .")
    found, wrong = {"python": platform.python_version()}, []
    if python and not admits(python, found["python"]):
        wrong.append(f"Python {found['python']} (wants {python})")
    for line in wanted:
        words, _, condition = line.partition(";")
        name, limits = re.match(r"\s*([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^)]*)", words).groups()
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if not condition:
                wrong.append(f"{name} is missing (wants {limits.strip() or 'any'})")
            continue
        found[name] = version
        if not admits(limits, version):
            wrong.append(f"{name} {version} (wants {limits.strip()})")
    shown = ("python", "torch", "numpy", "numba", "gymnasium", "mujoco")
    text = ", ".join(f"{name} {found.get(name, 'not installed')}" for name in shown)
    if wrong:
        return fail(
            "versions",
            f"{text}; not admitted: {', '.join(dict.fromkeys(wrong))}",
            "Run pip install powerband again, in an environment of its own.",
            **_figures(found),
        )
    return ok("versions", f"{text}; all as required", **_figures(found))


def _figures(found: dict[str, str]) -> dict[str, Any]:
    return {"versions": found}


def admits(limits: str, version: str) -> bool:
    """Whether a version is within limits such as ``>=3.3,<4``; suffixes such as ``+cpu`` and ``rc1`` do not count."""
    own = _numbers(version)
    for limit in filter(None, (part.strip() for part in limits.split(","))):
        sign, text = re.match(r"(>=|<=|==|!=|~=|>|<)\s*(.*)", limit).groups()
        other = _numbers(text)
        length = max(len(own), len(other))
        left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (own, other))
        prefix = own[: len(other)] == other
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            ">": left > right,
            "<": left < right,
            "==": prefix if text.endswith("*") else left == right,
            "!=": not (prefix if text.endswith("*") else left == right),
            "~=": left >= right and own[: len(other) - 1] == other[:-1],
        }
        if not holds[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
