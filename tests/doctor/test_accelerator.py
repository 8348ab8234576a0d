"""GPUs that are not there, drivers that refuse, and the processor's flags."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from powerband.core.device import simd, slow_bf16
from powerband.doctor import accelerator, nvml
from powerband.doctor.child import Outcome
from powerband.doctor.scope import Scope


class FakeNvml:
    """libnvidia-ml of a machine with one GPU; `init` is what nvmlInit returns."""

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

        def function(*words: Any) -> int:
            if field == "PowerUsage" and self.power:
                return self.power
            if field in ("Name", "UUID"):
                words[1].value = b"Fake H200" if field == "Name" else b"GPU-1"
            elif field == "MemoryInfo":
                memory = words[1]._obj
                memory.total, memory.free = 140 * 2**30, 100 * 2**30
            elif field == "Count_v2":
                words[0]._obj.value = 1
            elif field in self.numbers:
                words[-1]._obj.value = self.numbers[field]
            return 0

        return function


def rows(monkeypatch: pytest.MonkeyPatch, library: Any) -> Any:
    monkeypatch.setattr(nvml, "open_library", lambda: library)
    return accelerator.nvml_rows()


def test_nvml_reads_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    first, gpu = rows(monkeypatch, FakeNvml())
    assert first.status == "ok" and "570.1" in first.measured
    assert gpu.status == "ok" and gpu.figures["power_w"] == 120.5 and gpu.figures["free_gib"] == 100
    for part in ("Fake H200", "100 of 140 GiB free", "41 C", "120.5 W of 700 W", "PCIe gen 5 x16"):
        assert part in gpu.measured


def test_a_figure_that_may_not_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = rows(monkeypatch, FakeNvml(power=4))[1]
    assert gpu.status == "ok" and "power_w" not in gpu.figures and " W" not in gpu.measured


@pytest.mark.parametrize(
    ("code", "words"), [(4, "no permission"), (9, "driver is not loaded"), (18, "different versions"), (77, "error 77")]
)
def test_nvml_that_refuses_is_said_and_not_raised(monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    row = rows(monkeypatch, FakeNvml(init=code))
    assert row.status == "warn" and words in row.measured and "training is not affected" in row.measured


def test_no_nvml_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    row = accelerator.nvml_rows()
    assert row.status == "skipped" and "libnvidia-ml.so.1" in row.measured


def test_a_narrow_link_and_held_down_clocks_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "narrower" in rows(monkeypatch, FakeNvml(width=4))[1].advice
    slow = rows(monkeypatch, FakeNvml(slowed=0x44))[1]
    assert slow.status == "warn" and "power limit, temperature (hardware)" in slow.measured


def gpu_row(monkeypatch: pytest.MonkeyPatch, outcome: Outcome | None, cuda: str | None, hardware: bool) -> Any:
    scope = Scope()
    scope.__dict__["cuda"] = outcome
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [Path("/dev/nvidia0")] if hardware else [])
    return accelerator.gpu_row(scope)


@pytest.mark.parametrize(
    ("outcome", "cuda", "hardware", "status", "words"),
    [
        (None, None, False, "skipped", "training runs on the CPU"),
        (None, None, True, "fail", "built without CUDA"),
        (None, "12.8", False, "skipped", "no NVIDIA driver"),
        (None, "12.8", True, "fail", "libcuda.so.1"),
        (Outcome(problem="gave no answer within 60 s and was ended", kind="hang"), "12.8", True, "fail", "60 s"),
        (Outcome(value=0), "12.8", True, "skipped", "CUDA_VISIBLE_DEVICES"),
        (Outcome(value=2), "12.8", True, "ok", "2 GPU(s)"),
    ],
)
def test_what_is_in_the_way_of_a_gpu_is_said(
    monkeypatch: pytest.MonkeyPatch, outcome: Any, cuda: str | None, hardware: bool, status: str, words: str
) -> None:
    row = gpu_row(monkeypatch, outcome, cuda, hardware)
    assert row.status == status and words in row.measured
    assert row.advice or status != "fail"


def test_a_cuda_that_cannot_start_leaves_the_cpu() -> None:
    scope = Scope()
    scope.__dict__["cuda"] = Outcome(problem="died of SIGSEGV", kind="crash")
    assert scope.devices == [torch.device("cpu")]


def test_flags_of_the_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : X\nflags\t\t: fpu avx2 avx512f amx_bf16 avx512_bf16x\n")
    assert simd(cpuinfo) == ["avx2", "avx512f", "amx_bf16"]
    assert simd(tmp_path / "nothing") == []


def test_bf16_is_slow_on_a_processor_that_is_known_to_have_none() -> None:
    assert slow_bf16(["avx2"]) and slow_bf16(["avx2", "avx512f"])
    assert not slow_bf16([]) and not slow_bf16(["neon"]) and not slow_bf16(["avx2", "avx512_bf16"])
