"""Tests of section host: shared memory, control groups of both versions, full disks, unsupported versions."""

from __future__ import annotations

import errno
import importlib.util
import os
import resource
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerband.doctor.checks import host, package_versions


def statvfs(total: int, free: int) -> SimpleNamespace:
    return SimpleNamespace(f_frsize=4096, f_blocks=total // 4096, f_bavail=free // 4096)


@pytest.mark.parametrize(
    ("total", "free", "status", "advice"),
    [
        (64 * 2**20, 64 * 2**20, "warn", "--shm-size=8g"),
        (8 * 2**30, 8 * 2**30, "ok", ""),
        (8 * 2**30, 2**20, "warn", "Delete files"),
    ],
)
def test_shared_memory(monkeypatch: pytest.MonkeyPatch, total: int, free: int, status: str, advice: str) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: statvfs(total, free))
    row = host.shm_row()
    assert row.status == status and advice in row.advice and row.metrics["total_mib"] == total / 2**20


@pytest.mark.parametrize("unset", [True, False])
def test_missing_bytecode_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unset: bool) -> None:
    """Sources of four megabytes take more than half a second to compile."""
    monkeypatch.setattr(sys, "dont_write_bytecode", not unset)
    modules = []
    for number in range(40):
        source = tmp_path / f"part{number}.py"
        source.write_text("def double(number):\n    return [number, number + 1, {number: 2 * number}]\n\n\n" * 1200)
        cache = importlib.util.cache_from_source(str(source))
        modules.append(SimpleNamespace(__file__=str(source), __spec__=SimpleNamespace(cached=cache)))
    row = host.bytecode_row([*modules, SimpleNamespace(__file__=None, __spec__=None)])
    assert row.status == "warn" and row.metrics["without"] == row.metrics["modules"] == 40
    assert ("PYTHONDONTWRITEBYTECODE" in row.advice) == (not unset) and "compileall" in row.advice
    for module in modules:
        Path(module.__spec__.cached).parent.mkdir(exist_ok=True)
        Path(module.__spec__.cached).touch()
    assert host.bytecode_row(modules).message == "stored for 40 of 40 imported modules"


def test_missing_shared_memory_warns() -> None:
    assert host.shm_row("/nowhere/shm").status == "warn"


def control_group(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_cpu_quotas_of_both_cgroup_versions(tmp_path: Path) -> None:
    assert host.cpu_quota(control_group(tmp_path / "2", {"cpu.max": "150000 100000"})) == 1.5
    assert host.cpu_quota(control_group(tmp_path / "free", {"cpu.max": "max 100000"})) is None
    version_1 = {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}
    assert host.cpu_quota(control_group(tmp_path / "1", version_1)) == 0.5
    assert host.cpu_quota(control_group(tmp_path / "1free", {**version_1, "cpu/cpu.cfs_quota_us": "-1"})) is None
    assert host.cpu_quota(tmp_path / "none") is None


def test_a_quota_below_the_cores_warns(tmp_path: Path) -> None:
    row = host.cores_row(control_group(tmp_path, {"cpu.max": "50000 100000"}))
    assert row.status == "warn" and "quota 0.5 cores" in row.message and "OMP_NUM_THREADS" in row.advice


def test_memory_limits_of_both_cgroup_versions(tmp_path: Path) -> None:
    assert host.memory_limit_gib(control_group(tmp_path / "2", {"memory.max": str(2**31)}), 16) == 2
    assert host.memory_limit_gib(control_group(tmp_path / "max", {"memory.max": "max"}), 16) is None
    version_1 = {"memory/memory.limit_in_bytes": "9223372036854771712"}
    assert host.memory_limit_gib(control_group(tmp_path / "1", version_1), 16) is None
    row = host.memory_row(tmp_path / "2")
    assert row.status == "warn" and "limit 2.0 GiB" in row.message and "replay_size" in row.advice


def test_few_open_files_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 8192))
    row = host.files_row()
    assert row.status == "warn" and "ulimit -n 8192" in row.advice


def test_a_full_disk_fails_and_a_new_run_folder_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = host.disk_row(tmp_path / "runs" / "new")
    assert row.status in ("ok", "warn") and row.metrics["write_mb_s"] > 0 and not (tmp_path / "runs").exists()

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host, "_write_speed", full)
    row = host.disk_row(tmp_path)
    assert row.status == "fail" and "No space left" in row.message and "run_dir" in row.advice


@pytest.mark.parametrize(
    ("limits", "version", "allowed"),
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
def test_version_limits(limits: str, version: str, allowed: bool) -> None:
    assert package_versions.satisfies(limits, version) is allowed


def test_versions_out_of_range_or_missing_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["torch>=99", "missing-package>=1", "missing-extra; extra == 'gym'", "numpy[x]<1; extra == 'gym'"]
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    monkeypatch.setattr(metadata, "metadata", lambda name: {"Requires-Python": ">=4"})
    row = package_versions.versions_row()
    assert row.status == "fail"
    for part in ("(required: >=4)", "(required: >=99)", "missing-package is missing", "numpy"):
        assert part in row.message
    assert "missing-extra" not in row.message


def test_packages_of_extras_out_of_range_only_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=1", "numpy[x]<1; extra == 'gym'"])
    monkeypatch.setattr(metadata, "metadata", lambda name: {"Requires-Python": ">=3"})
    row = package_versions.versions_row()
    assert row.status == "warn" and "numpy" in row.message and "extra" in row.advice


def test_a_machine_without_proc_and_affinity_has_cores_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    row = host.memory_row(tmp_path, tmp_path / "meminfo")
    assert row.status == "ok" and "GiB" in row.message and row.metrics["total_gib"] > 0
    assert host.cores_row(tmp_path).metrics["affinity"] == os.cpu_count() == host._numba_threads()


def test_more_threads_than_cores_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr("powerband.core.machine.device.cores", lambda: 2)
    row = host.threads_row()
    assert row.status == "warn" and "OMP_NUM_THREADS=2" in row.advice
