"""The host: small shared memory, quotas of both kinds of control groups, full disks, versions out of range."""

from __future__ import annotations

import errno
import os
import resource
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerband.doctor import host


def statvfs(total: int, free: int) -> SimpleNamespace:
    return SimpleNamespace(f_frsize=4096, f_blocks=total // 4096, f_bavail=free // 4096)


@pytest.mark.parametrize(
    ("total", "free", "status", "words"),
    [
        (64 * 2**20, 64 * 2**20, "warn", "--shm-size=8g"),
        (8 * 2**30, 8 * 2**30, "ok", ""),
        (8 * 2**30, 2**20, "warn", "Delete what"),
    ],
)
def test_shared_memory(monkeypatch: pytest.MonkeyPatch, total: int, free: int, status: str, words: str) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: statvfs(total, free))
    row = host.shm_row()
    assert row.status == status and words in row.advice and row.figures["total_mib"] == total / 2**20


def test_shared_memory_that_is_not_mounted_is_said() -> None:
    assert host.shm_row("/nowhere/shm").status == "warn"


def group(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_quotas_of_both_versions_of_control_groups(tmp_path: Path) -> None:
    assert host.cpu_quota(group(tmp_path / "2", {"cpu.max": "150000 100000"})) == 1.5
    assert host.cpu_quota(group(tmp_path / "free", {"cpu.max": "max 100000"})) is None
    old = {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}
    assert host.cpu_quota(group(tmp_path / "1", old)) == 0.5
    assert host.cpu_quota(group(tmp_path / "1free", {**old, "cpu/cpu.cfs_quota_us": "-1"})) is None
    assert host.cpu_quota(tmp_path / "none") is None


def test_a_quota_below_the_cores_warns(tmp_path: Path) -> None:
    row = host.cores_row(group(tmp_path, {"cpu.max": "50000 100000"}))
    assert row.status == "warn" and "quota 0.5 cores" in row.measured and "OMP_NUM_THREADS" in row.advice


def test_memory_limits_of_both_versions(tmp_path: Path) -> None:
    assert host.memory_limit_gib(group(tmp_path / "2", {"memory.max": str(2**31)}), 16) == 2
    assert host.memory_limit_gib(group(tmp_path / "max", {"memory.max": "max"}), 16) is None
    one = {"memory/memory.limit_in_bytes": "9223372036854771712"}
    assert host.memory_limit_gib(group(tmp_path / "1", one), 16) is None
    row = host.memory_row(tmp_path / "2")
    assert row.status == "warn" and "limit 2.0 GiB" in row.measured and "replay_size" in row.advice


def test_few_open_files_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 8192))
    row = host.files_row()
    assert row.status == "warn" and "ulimit -n 8192" in row.advice


def test_a_disk_that_is_full_fails_and_a_new_folder_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = host.disk_row(tmp_path / "runs" / "new")
    assert row.status in ("ok", "warn") and row.figures["write_mb_s"] > 0 and not (tmp_path / "runs").exists()

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host, "_write_speed", full)
    row = host.disk_row(tmp_path)
    assert row.status == "fail" and "No space left" in row.measured and "run_dir" in row.advice


@pytest.mark.parametrize(
    ("limits", "version", "admitted"),
    [
        (">=2.8", "2.13.0+cpu", True),
        (">=2.8", "2.7.1", False),
        (">=3.3,<4", "3.17.0", True),
        (">=3.3,<4", "4.0.0", False),
        (">=3.3,<4", "4.0.0rc1", False),
        ("==2.*", "2.4", True),
        ("!=2.1.*,>=2", "2.1.5", False),
        ("~=1.4.2", "1.4.9", True),
        ("~=1.4.2", "1.5.0", False),
        ("", "1", True),
        (">=3.11", "3.11", True),
    ],
)
def test_version_limits(limits: str, version: str, admitted: bool) -> None:
    assert host.admits(limits, version) is admitted


def test_versions_out_of_range_or_missing_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["torch>=99", "powerband-of-nobody>=1", "other-of-nobody; extra == 'gym'", "numpy[x]<1; extra == 'gym'"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(metadata, "metadata", lambda name: {"Requires-Python": ">=4"})
    row = host.versions_row()
    assert row.status == "fail"
    for part in ("(wants >=4)", "(wants >=99)", "powerband-of-nobody is missing", "numpy"):
        assert part in row.measured
    assert "other-of-nobody" not in row.measured


def test_more_threads_than_cores_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr("powerband.core.device.cores", lambda: 2)
    row = host.threads_row()
    assert row.status == "warn" and "OMP_NUM_THREADS=2" in row.advice
