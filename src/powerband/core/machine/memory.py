"""Memory: used, peak and free bytes of a rank.

On a GPU, `used` and `peak` count the bytes that torch's allocator has reserved. They exclude the CUDA context, some
hundred MiB, which reduces `free`. On a CPU they count the resident bytes of this process and its simulator workers;
pages that two processes share, such as libraries, count twice.

The buffer of a replay or rollout counts in full from its creation on, because torch writes its zeros at once.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import Any

from powerband.core.machine.utilisation import process_tree, process_usage

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
KIB = 1024
RESET_PEAK = "5"
"""Value that resets the peak of a process when it is written to its ``clear_refs`` (Linux)."""


def used(device: Any = "cpu") -> int:
    """Bytes that this rank uses now; 0 if unknown.

    On a GPU these are the bytes that torch's allocator has reserved. On a CPU they are the resident bytes of this
    process and its workers.
    """
    if _on_cpu(device):
        return process_usage(process_tree(os.getpid()))[1]
    import torch

    return torch.cuda.memory_reserved(device)


def peak(device: Any = "cpu") -> int:
    """Most bytes that this rank used since `reset_peak`, or since the start of its processes; 0 if unknown.

    The bytes are counted as in `used`. On a CPU this is the sum of the peaks of this process and its workers, even if
    the peaks occurred at different times.
    """
    if _on_cpu(device):
        pids = process_tree(os.getpid())
        return max(sum(map(_peak_of, pids)), process_usage(pids)[1])
    import torch

    return torch.cuda.max_memory_reserved(device)


def reset_peak(device: Any = "cpu") -> None:
    """Starts a new measurement for `peak`. On a CPU the old peak stays if the operating system denies the reset."""
    if _on_cpu(device):
        for pid in process_tree(os.getpid()):
            with contextlib.suppress(OSError):
                (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)
        return
    import torch

    torch.cuda.reset_peak_memory_stats(device)


def release_unused() -> None:
    """Releases unused memory of this process: reference cycles, and torch's cache on GPUs."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def free(device: Any = "cpu") -> int | None:
    """Bytes that all ranks of this device or machine together can still allocate; None if unknown.

    On a CPU this is the smaller of the machine's available memory and the remainder of the control groups' limits.
    Both count droppable caches as free.
    """
    if not _on_cpu(device):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    known = [limit for limit in (_available(), cgroup_free()) if limit is not None]
    return min(known) if known else None


def cgroup_free(proc: Path = PROC, root: Path = CGROUP) -> int | None:
    """Bytes that the control groups (version 1 or 2) of this process still allow; None without a limit.

    Args:
        proc: Mount point of procfs.
        root: Mount point of the control groups.
    """
    free_bytes = []
    for line in _text(proc / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if controllers == "":
            free_bytes += _free_of_groups(root, place, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            free_bytes += _free_of_groups(root / "memory", place, *names)
    return min(free_bytes) if free_bytes else None


def _free_of_groups(root: Path, place: str, limit: str, usage: str, cache: str) -> list[int]:
    """Free bytes of each control group with a limit, from `place` up to `root`.

    `place` is the path of the process's group below `root`; in a container this group is the root.
    `limit` and `usage` are names of files, and `cache` is an entry of ``memory.stat``.
    """
    own, found = Path(place.strip("/")), []
    for folder in {root / above for above in (own, *own.parents)}:
        most, now = _number(folder / limit), _number(folder / usage)
        if most is None or now is None or most >= _total():
            continue
        facts = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
        found.append(max(0, most - now + int(facts.get(cache, 0))))
    return found


def _on_cpu(device: Any) -> bool:
    return not str(device).startswith("cuda")


def _available() -> int | None:
    return _kib(PROC / "meminfo", "MemAvailable:")


def _total() -> float:
    """Total bytes of the machine; a limit above it has no effect."""
    return _kib(PROC / "meminfo", "MemTotal:") or float("inf")


def _peak_of(pid: int) -> int:
    return _kib(PROC / str(pid) / "status", "VmHWM:") or 0


def _kib(path: Path, key: str) -> int | None:
    """Bytes of the line ``KEY number kB``; None without this line."""
    line = next((line for line in _text(path).splitlines() if line.startswith(key)), None)
    return None if line is None else int(line.split()[1]) * KIB


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
