"""Devices: the option ``gpus`` with and without GPUs, and the division of cores among ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.machine import device


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    for name in (*names, "SLURM_PROCID", "SLURM_CPUS_PER_TASK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def device_names(monkeypatch: pytest.MonkeyPatch, gpu_count: int, **settings: object) -> list[str]:
    monkeypatch.setattr(device, "_gpu_count", lambda: gpu_count)
    return device.device_names(RunConfig(**settings))


@pytest.mark.parametrize(
    ("gpu_count", "settings", "expected"),
    [
        (0, {}, ["cpu"]),
        (0, {"nproc": 4}, ["cpu"]),
        (4, {}, ["cuda:0"]),
        (4, {"nproc": 2}, ["cuda:0", "cuda:1"]),
        (4, {"gpus": "all"}, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        (4, {"gpus": "2, 0"}, ["cuda:2", "cuda:0"]),
        (4, {"gpus": "0,2", "nproc": 2}, ["cuda:0", "cuda:2"]),
        (4, {"gpus": "none", "nproc": 2}, ["cpu"]),
        (4, {"gpus": "cpu"}, ["cpu"]),
    ],
)
def test_device_names(monkeypatch: pytest.MonkeyPatch, gpu_count: int, settings: dict, expected: list[str]) -> None:
    assert device_names(monkeypatch, gpu_count, **settings) == expected


@pytest.mark.parametrize(
    ("gpu_count", "settings", "parts"),
    [
        (0, {"gpus": "7"}, ["gpus=7", "no GPU", "gpus=none nproc=1"]),
        (0, {"gpus": "0,1"}, ["gpus=none nproc=2"]),
        (0, {"gpus": "all"}, ["no GPU"]),
        (2, {"gpus": "7"}, ["2 GPUs", "0 to 1"]),
        (2, {"gpus": "0,0"}, ["twice"]),
        (2, {"gpus": "0,1", "nproc": 3}, ["2 GPUs", "nproc=3"]),
        (2, {"nproc": 3}, ["3 ranks", "nproc=2", "gpus=none nproc=3"]),
    ],
)
def test_refused(monkeypatch: pytest.MonkeyPatch, gpu_count: int, settings: dict, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        device_names(monkeypatch, gpu_count, **settings)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_ranks_of_a_launcher_determine_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert device_names(monkeypatch, 4) == ["cuda:0", "cuda:1"]
    assert device_names(monkeypatch, 0) == ["cpu"]
    with pytest.raises(ConfigError, match="the launcher started 2 ranks"):
        device_names(monkeypatch, 4, gpus="all")


def test_tasks_of_srun_may_see_their_own_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="4 ranks require 4 GPUs.*Start 1 processes per machine, or write gpus=none"):
        device_names(monkeypatch, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert device_names(monkeypatch, 1) == ["cuda:0"] * 4
    with pytest.raises(ConfigError, match="Start 2 processes per machine"):
        device_names(monkeypatch, 2)


def test_the_message_names_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=5"):
        device_names(monkeypatch, 1, gpus="5")


def test_ranks_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_gpu_count", lambda: 3)
    assert device.ranks_on_this_machine(RunConfig(gpus="all")) == 3
    assert device.ranks_on_this_machine(RunConfig(gpus="none", nproc=5)) == 5
    assert device.ranks_on_this_machine(RunConfig()) == 1


def test_threads_are_shared_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cores", lambda: 8)
    assert device.threads_per_rank(0, 1) == 8
    assert device.threads_per_rank(0, 3) == 2
    assert device.threads_per_rank(0, 100) == 1
    assert device.threads_per_rank(5, 3) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert device.threads_per_rank(0, 1) == 4
    monkeypatch.setenv("RANK", "0")  # OMP_NUM_THREADS=1 of torchrun is not the user's choice
    assert device.threads_per_rank(0, 2) == 4
    environment = device.thread_environment(3, 2)
    assert environment == {"OMP_NUM_THREADS": "3", "NUMBA_NUM_THREADS": "3", **device.OPENMP_WAIT_VARIABLES}


def test_cores_to_which_srun_has_bound_a_task_are_not_divided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cores", lambda: 8)
    for name, value in (("SLURM_PROCID", "1"), ("SLURM_CPUS_PER_TASK", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert device.cores_per_rank() == 2  # not a rank of srun
    monkeypatch.setenv("RANK", "1")
    assert device.cores_per_rank() == 8 and device.threads_per_rank(0, 4) == 8
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")  # without binding, a task sees the cores of all tasks
    assert device.cores_per_rank() == 2
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")  # a launcher within the task has started the ranks
    assert device.cores_per_rank() == 2 and device.threads_per_rank(0, 4) == 2


def test_set_threads_reaches_torch() -> None:
    before = torch.get_num_threads(), dict(os.environ)
    try:
        assert device.set_threads(1, 1) == 1
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before[0])
        os.environ.clear()
        os.environ.update(before[1])


def test_threads_of_torch_are_independent_of_an_earlier_import_of_numba() -> None:
    code = (
        "import numba, torch; from powerband.core.machine.device import set_threads; "
        "torch.ones(99, 99) @ torch.ones(99, 99);"
        "set_threads(1, 1); print(torch.get_num_threads())"
    )
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert completed.stdout.strip() == "1"


def test_host_facts_are_json() -> None:
    facts = json.loads(json.dumps(device.host_facts()))
    assert facts["cores"] >= 1 and facts["torch"] and facts["cpu"] and facts["memory_gib"] > 0
    assert isinstance(facts["gpus"], list)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_host_facts_of_a_gpu() -> None:
    gpu = device.host_facts()["gpus"][0]
    assert gpu["name"] and gpu["memory_gib"] > 0
    assert device.device_names(RunConfig()) == ["cuda:0"]


def test_quotas_of_both_cgroup_versions_limit_the_cores(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(device, "CGROUP", tmp_path)
    monkeypatch.setattr(device, "affinity_cores", lambda: 8)
    assert device.cores() == 8
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("350000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert device.cores() == 3
    (tmp_path / "cpu.max").write_text("50000 100000")
    assert device.cores() == 1
