"""Tests of section accelerator: missing GPUs, drivers that return errors, and flags of the processor."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from powerband.core.machine.device import emulates_bf16, simd
from powerband.doctor import nvml
from powerband.doctor.checks import accelerator
from powerband.doctor.context import CheckContext
from powerband.doctor.subprocess_call import SubprocessResult


class FakeNvml:
    """libnvidia-ml of a machine with one GPU.

    Args:
        init: Return code of nvmlInit.
        width: Width of the PCIe link.
        slowed: Bits of the throttle reasons.
        power: Return code of nvmlDeviceGetPowerUsage.
    """

    def __init__(self, init: int = 0, width: int = 16, slowed: int = 1, power: int = 0) -> None:
        self.init, self.power = init, power
        self.numbers = {"Temperature": 41, "EnforcedPowerLimit": 700_000, "CurrPcieLinkGeneration": 5}
        self.numbers |= {"MaxPcieLinkGeneration": 5, "CurrPcieLinkWidth": width, "MaxPcieLinkWidth": 16}
        self.numbers |= {"CurrentClocksThrottleReasons": slowed, "PowerUsage": 120_500}

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.init

    def nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: int) -> int:  # noqa: N802
        buffer.value = b"570.1"
        return 0

    def __getattr__(self, name: str) -> Any:
        field = name.removeprefix("nvmlDeviceGet")

        def function(*arguments: Any) -> int:
            if field == "PowerUsage" and self.power:
                return self.power
            if field in ("Name", "UUID"):
                arguments[1].value = b"Fake H200" if field == "Name" else b"GPU-1"
            elif field == "MemoryInfo":
                memory = arguments[1]._obj
                memory.total, memory.free = 140 * 2**30, 100 * 2**30
            elif field == "Count_v2":
                arguments[0]._obj.value = 1
            elif field in self.numbers:
                arguments[-1]._obj.value = self.numbers[field]
            return 0

        return function


def nvml_rows(monkeypatch: pytest.MonkeyPatch, library: Any) -> Any:
    monkeypatch.setattr(nvml, "open_library", lambda: library)
    return accelerator.nvml_rows()


def test_nvml_reports_driver_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    first, gpu = nvml_rows(monkeypatch, FakeNvml())
    assert first.status == "ok" and "570.1" in first.message
    assert gpu.status == "ok" and gpu.metrics["power_w"] == 120.5 and gpu.metrics["free_gib"] == 100
    for part in ("Fake H200", "100 of 140 GiB free", "41 C", "120.5 W of 700 W", "PCIe gen 5 x16"):
        assert part in gpu.message


def test_a_value_without_permission_is_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = nvml_rows(monkeypatch, FakeNvml(power=4))[1]
    assert gpu.status == "ok" and "power_w" not in gpu.metrics and " W" not in gpu.message


@pytest.mark.parametrize(
    ("code", "text"), [(4, "no permission"), (9, "driver is not loaded"), (18, "different versions"), (77, "error 77")]
)
def test_an_nvml_error_is_a_warning(monkeypatch: pytest.MonkeyPatch, code: int, text: str) -> None:
    row = nvml_rows(monkeypatch, FakeNvml(init=code))
    assert row.status == "warn" and text in row.message and "training is not affected" in row.message


def test_missing_nvml_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", raise_missing)
    row = accelerator.nvml_rows()
    assert row.status == "skipped" and "libnvidia-ml.so.1" in row.message


def test_a_narrow_link_and_reduced_clocks_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "narrower" in nvml_rows(monkeypatch, FakeNvml(width=4))[1].advice
    slow = nvml_rows(monkeypatch, FakeNvml(slowed=0x44))[1]
    assert slow.status == "warn" and "power limit, temperature (hardware)" in slow.message


def gpu_row(monkeypatch: pytest.MonkeyPatch, outcome: SubprocessResult | None, cuda: str | None, hardware: bool) -> Any:
    context = CheckContext()
    context.__dict__["cuda"] = outcome
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [Path("/dev/nvidia0")] if hardware else [])
    return accelerator.gpu_row(context)


@pytest.mark.parametrize(
    ("outcome", "cuda", "hardware", "status", "text"),
    [
        (None, None, False, "skipped", "training runs on the CPU"),
        (None, None, True, "fail", "built without CUDA"),
        (None, "12.8", False, "skipped", "no NVIDIA driver"),
        (None, "12.8", True, "fail", "libcuda.so.1"),
        (
            SubprocessResult(problem="gave no answer within 60 s and was ended", kind="hang"),
            "12.8",
            True,
            "fail",
            "60 s",
        ),
        (SubprocessResult(value=0), "12.8", True, "skipped", "CUDA_VISIBLE_DEVICES"),
        (SubprocessResult(value=2), "12.8", True, "ok", "2 GPU(s)"),
    ],
)
def test_the_obstacle_to_using_a_gpu_is_reported(
    monkeypatch: pytest.MonkeyPatch, outcome: Any, cuda: str | None, hardware: bool, status: str, text: str
) -> None:
    row = gpu_row(monkeypatch, outcome, cuda, hardware)
    assert row.status == status and text in row.message
    assert row.advice or status != "fail"


def test_if_cuda_cannot_start_only_the_cpu_is_checked() -> None:
    context = CheckContext()
    context.__dict__["cuda"] = SubprocessResult(problem="died of SIGSEGV", kind="crash")
    assert context.devices == [torch.device("cpu")]


def test_flags_of_the_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : X\nflags\t\t: fpu avx2 avx512f amx_bf16 avx512_bf16x\n")
    assert simd(cpuinfo) == ["avx2", "avx512f", "amx_bf16"]
    assert simd(tmp_path / "nothing") == []


def test_bf16_is_emulated_on_a_processor_with_known_flags_without_it() -> None:
    assert emulates_bf16(["avx2"]) and emulates_bf16(["avx2", "avx512f"])
    assert not emulates_bf16([]) and not emulates_bf16(["neon"]) and not emulates_bf16(["avx2", "avx512_bf16"])
