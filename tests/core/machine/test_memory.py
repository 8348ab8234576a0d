"""Memory of a rank: used, peak and free bytes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from powerband.core.machine import memory
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec

MIB = 2**20
CAPACITY = 2**16
pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc on this system")


def trim_heap() -> None:
    """Returns free heap of earlier tests to the kernel, so that new blocks increase the resident memory."""
    with contextlib.suppress(AttributeError):  # a C library without malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def test_a_peak_stays_after_the_release_of_memory_and_can_be_reset():
    before = memory.used()
    block = mmap.mmap(-1, 64 * MIB)
    block.write(bytes(64 * MIB))
    with_block = memory.used()
    block.close()
    after = memory.used()
    assert with_block - before > 60 * MIB and with_block - after > 60 * MIB
    assert memory.peak() >= with_block
    memory.reset_peak()
    assert memory.peak() < with_block - 50 * MIB


def test_workers_count_with_their_process():
    before = memory.used()
    code = "block = bytearray(48 << 20)\nprint('up', flush=True)\ninput()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert memory.used() - before > 48 * MIB and memory.peak() - before > 48 * MIB
    finally:
        child.kill()
        child.wait()
    assert memory.used() - before < 40 * MIB


def test_an_empty_replay_counts_in_full():
    trim_heap()
    before, rows = memory.used(), {"obs": torch.ones(2**10, 512)}
    replay = Replay(CAPACITY, 2**10, "cpu", {"obs": TensorSpec((512,))})
    empty = memory.used()
    assert empty - before == pytest.approx(128 * MIB, abs=8 * MIB)
    for _ in range(CAPACITY // 2**10):
        replay.add(rows)
    assert len(replay) == CAPACITY and memory.used() == pytest.approx(empty, abs=8 * MIB)


def test_free_memory_is_below_the_total_of_the_machine():
    free, total = memory.free(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert free is not None and 0 < free < total


def group(folder: Path, limit: str, now: int, cache: int, version: int) -> None:
    names = {2: ("memory.max", "memory.current", "inactive_file")}
    names |= {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}
    limit_name, usage, inactive = names[version]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit_name).write_text(f"{limit}\n")
    (folder / usage).write_text(f"{now}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{inactive} {cache}\n")


@pytest.mark.parametrize(
    ("version", "line", "below"),
    [(2, "0::/user.slice/job.scope\n", ""), (1, "4:cpu,memory:/user.slice/job.scope\n0::/\n", "memory")],
)
def test_the_strictest_control_group_limits_free_memory(tmp_path: Path, version: int, line: str, below: str):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(line)
    root = tmp_path / "cgroup"
    assert memory.cgroup_free(tmp_path, root) is None
    group(root / below / "user.slice/job.scope", "max" if version == 2 else str(2**63 - 4096), 10, 0, version)
    assert memory.cgroup_free(tmp_path, root) is None
    group(root / below / "user.slice", str(100 * MIB), 30 * MIB, 5 * MIB, version)  # droppable caches count as free
    assert memory.cgroup_free(tmp_path, root) == 75 * MIB
    group(root / below / "user.slice/job.scope", str(20 * MIB), 21 * MIB, 0, version)
    assert memory.cgroup_free(tmp_path, root) == 0
    if version == 2:  # inside a container the group of the process is the root
        (tmp_path / "self/cgroup").write_text("0::/\n")
        group(root, str(50 * MIB), 40 * MIB, 0, version)
        assert memory.cgroup_free(tmp_path, root) == 10 * MIB


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_memory_of_a_gpu_follows_the_allocator():
    memory.reset_peak("cuda")
    free, before = memory.free("cuda"), memory.used("cuda")
    block = torch.ones(64 * MIB // 4, device="cuda")
    assert memory.used("cuda") - before >= 64 * MIB and memory.free("cuda") < free
    del block
    torch.cuda.empty_cache()
    assert memory.peak("cuda") - memory.used("cuda") >= 64 * MIB
