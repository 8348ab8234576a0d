"""Memory: bytes that a rank has in use, had at its peak, and could still get.

On a GPU the bytes are those that torch's allocator has taken from the driver; the CUDA context, some hundred MiB, is in
none of them but already missing in `free`. On a CPU they are the resident bytes of this process and its simulator
workers: pages that two of them share, such as libraries, count for each.

A replay or rollout counts whole from the moment it is made, however few transitions it holds: torch writes its zeros
at once, and the pages of what was written are resident.
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
"""What Linux wants written to ``clear_refs`` to begin a new peak of a process."""


def used(device: Any = "cpu") -> int:
    """Bytes that this rank has in use now; 0 where the system does not say."""
    if _on_cpu(device):
        return process_usage(process_tree(os.getpid()))[1]
    import torch

    return torch.cuda.memory_reserved(device)


def peak(device: Any = "cpu") -> int:
    """Most bytes that this rank had in use since `reset_peak`, or since its processes began; 0 where nobody says.

    Peaks of workers are added up, whether or not they came together.
    """
    if _on_cpu(device):
        pids = process_tree(os.getpid())
        return max(sum(map(_peak_of, pids)), process_usage(pids)[1])
    import torch

    return torch.cuda.max_memory_reserved(device)


def reset_peak(device: Any = "cpu") -> None:
    """Begins a new peak; where a process may not do so, its old one stays."""
    if _on_cpu(device):
        for pid in process_tree(os.getpid()):
            with contextlib.suppress(OSError):
                (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)
        return
    import torch

    torch.cuda.reset_peak_memory_stats(device)


def release_unused() -> None:
    """Gives the system what this process has and nobody uses: objects that hold each other, torch's cache of a GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def free(device: Any = "cpu") -> int | None:
    """Bytes that could still be taken, by all ranks of this device or machine together; None where nobody says.

    On a CPU the smaller of what the machine has available and what control groups leave: caches that can be dropped
    are free.
    """
    if not _on_cpu(device):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    known = [left for left in (_available(), cgroup_left()) if left is not None]
    return min(known) if known else None


def cgroup_left(proc: Path = PROC, root: Path = CGROUP) -> int | None:
    """Bytes that the control groups above this process still allow, version 2 or 1; None where they set no limit."""
    left = []
    for line in _text(proc / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if controllers == "":
            left += _lefts(root, place, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            left += _lefts(root / "memory", place, *names)
    return min(left) if left else None


def _lefts(root: Path, place: str, limit: str, taken: str, cache: str) -> list[int]:
    """What each group from `place` up to `root` leaves; a container sees its own group as the root."""
    own, found = Path(place.strip("/")), []
    for folder in {root / above for above in (own, *own.parents)}:
        most, now = _number(folder / limit), _number(folder / taken)
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
    """Bytes of the machine: a limit above it is none."""
    return _kib(PROC / "meminfo", "MemTotal:") or float("inf")


def _peak_of(pid: int) -> int:
    return _kib(PROC / str(pid) / "status", "VmHWM:") or 0


def _kib(path: Path, key: str) -> int | None:
    """Bytes on the line ``KEY number kB``; None without such a line."""
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
