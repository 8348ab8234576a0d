"""Tests of section rendering: the renderer of each backend, and causes and advice for backends that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import powerband
from powerband.core.machine.egl import EglDevice, EglError
from powerband.doctor.checks import rendering
from powerband.doctor.checks.rendering import backend_row, explain_failure
from powerband.doctor.context import CheckContext
from powerband.doctor.subprocess_call import SubprocessResult

pytest.importorskip("mujoco")


def test_hardware_is_ok_software_warns_and_a_blank_image_fails() -> None:
    working: dict[str, bool] = {}
    row = backend_row("egl", working, function="doctor.faulty:hardware_image")
    assert row.status == "ok" and "NVIDIA H200" in row.message and "900 frames/s at 128 px" in row.message
    assert working == {"egl": True} and row.metrics["software"] is False
    assert backend_row("egl", working, function="doctor.faulty:blank_image").status == "fail"
    software = rendering._rendered_row(
        "egl", {**row.metrics, "version": "", "renderer": "llvmpipe (LLVM 15)", "blank": False}
    )
    assert software.status == "warn" and software.message.startswith("SOFTWARE RENDERING: llvmpipe")


@pytest.mark.parametrize("name", ["llvmpipe (LLVM 15.0.6, 256 bits)", "softpipe", "Software Rasterizer", "swrast"])
def test_software_renderers_are_recognised_by_name(name: str) -> None:
    assert rendering.is_software(name) and not rendering.is_software("NVIDIA GeForce RTX 4090/PCIe/SSE2")


@pytest.mark.parametrize(("function", "problem"), [("hang", "gave no answer within 3 s"), ("crash", "died of SIGSEGV")])
def test_a_driver_that_hangs_or_crashes_is_reported(function: str, problem: str) -> None:
    row = backend_row("egl", {}, function=f"doctor.faulty:{function}", timeout_s=3 if function == "hang" else 60)
    assert row.status == "fail" and problem in row.message and "driver" in row.advice


def test_a_failure_of_osmesa_is_a_warning_if_egl_works() -> None:
    for working, status in (({"egl": True}, "warn"), ({"egl": False}, "fail"), ({}, "fail")):
        assert backend_row("osmesa", working, function="doctor.faulty:raises").status == status


UNPRINTABLE = "EGLError: EGL_NOT_INITIALIZED in eglMakeCurrent"


@pytest.mark.parametrize(
    ("devices", "output", "cause", "advice"),
    [
        ([], "", "without a driver", "libegl-mesa0"),
        ([EglDevice(0, software=True, error="EGL_NOT_INITIALIZED")], "swrast_dri.so", "0 EGL_NOT_INITIALIZED", "-dri"),
        ([EglDevice(0, error="EGL_BAD_ACCESS")], "", "0 EGL_BAD_ACCESS", "video and render"),
        ([EglDevice(0), EglDevice(1, error="EGL_BAD_ACCESS")], "", UNPRINTABLE, "MUJOCO_EGL_DEVICE_ID"),
        (EglError("an EGL driver crashed (signal 11)"), "", "crashed (signal 11)", "apt-get install"),
    ],
)
def test_the_cause_of_an_egl_failure_is_explained(
    monkeypatch: pytest.MonkeyPatch, devices: Any, output: str, cause: str, advice: str
) -> None:
    def list_devices(open_each: bool) -> list[EglDevice]:
        if isinstance(devices, EglError):
            raise devices
        return devices

    monkeypatch.setattr(rendering, "missing_library", lambda backend: "")
    monkeypatch.setattr(rendering, "egl_devices", list_devices)
    explanation = explain_failure("egl", SubprocessResult(problem=UNPRINTABLE, kind="error", output=output))
    assert cause in explanation[0] and advice in explanation[1]


def devices_rows(monkeypatch: pytest.MonkeyPatch, devices: list[EglDevice], gpus: int) -> dict[str, Any]:
    monkeypatch.setattr(rendering, "missing_library", lambda backend: "")
    monkeypatch.setattr(rendering, "egl_devices", lambda open_each: devices)
    context = CheckContext()
    context.__dict__["devices"] = ["cpu", *range(gpus)]
    return {row.name: row for row in rendering.devices_rows(context)}


def test_cuda_devices_are_mapped_to_egl_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [EglDevice(0, cuda=1, vendor="NVIDIA"), EglDevice(1, cuda=0, vendor="NVIDIA"), EglDevice(2, software=True)]
    rows = devices_rows(monkeypatch, two, 2)
    assert rows["cuda to egl"].metrics["cuda_to_egl"] == {"1": 0, "0": 1}
    assert "cuda:1 is EGL device 0" in rows["cuda to egl"].message
    assert rows["egl device 2"].message == "software"


def test_gpus_that_egl_does_not_list_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    row = devices_rows(monkeypatch, [EglDevice(0, software=True, vendor="Mesa Project")], 1)["cuda to egl"]
    assert row.status == "fail" and "NVIDIA_DRIVER_CAPABILITIES" in row.advice


def test_each_gpu_renders_with_the_variables_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [EglDevice(0, cuda=1), EglDevice(1, cuda=0)]
    monkeypatch.setattr(rendering, "query_egl", lambda: ("", two))
    monkeypatch.setattr(rendering, "cuda_index_and_uuid", lambda gpu: (int(gpu.removeprefix("cuda:")), ""))
    for gpu, device in (("cuda:0", "1"), ("cuda:1", "0")):
        row = rendering.gpu_rendering_row(gpu, function="doctor.faulty:image_of_device")
        assert row.status == "ok" and row.name == f"egl {gpu}"
        assert row.message.startswith(f"EGL device {device}: device {device} of NVIDIA")
    assert rendering.gpu_rendering_row("cuda:2").status == "skipped"
    assert rendering.gpu_rendering_row("cuda:0", function="doctor.faulty:crash").status == "fail"


def test_variables_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBGL_ALWAYS_SOFTWARE", "1")
    monkeypatch.setenv("HABITAT_SIM_LOG", "quiet")
    row = rendering.variables_row()
    assert row.status == "warn" and "HABITAT_SIM_LOG=quiet: log level of habitat-sim" in row.message
    assert "LIBGL_ALWAYS_SOFTWARE=1 renders on the CPU" in row.advice


def test_contradicting_variables_of_the_user_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("PYOPENGL_PLATFORM", "osmesa")
    context = CheckContext()
    context.__dict__["devices"] = ["cpu"]
    assert "contradict" in rendering.run_variables_row(context).advice


def command(tmp_path: Path, **environment: str) -> tuple[int, dict[str, Any]]:
    """Returns (exit status, rows by name) of ``powerband doctor rendering`` with changed variables."""
    variables = {name: value for name, value in os.environ.items() if name not in rendering.VARIABLES}
    variables |= {"PYTHONPATH": str(Path(powerband.__file__).parents[1]), **environment}
    arguments = [sys.executable, "-m", "powerband", "doctor", "rendering", "--json"]
    done = subprocess.run(arguments, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200)
    return done.returncode, {row["name"]: row for row in json.loads(done.stdout)["rows"]}


def test_a_missing_library_through_the_command(tmp_path: Path) -> None:
    """Invalid files with the names of the libraries come first on the search path."""
    for name in ("EGL", "OSMesa", "GL", "OpenGL", "GLESv2"):
        for version in ("", *(f".{number}" for number in range(10))):
            (tmp_path / f"lib{name}.so{version}").write_text("not a library")
    status, rows = command(tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert status == 1 and rows["egl"]["status"] == rows["osmesa"]["status"] == "fail"
    assert "libEGL cannot be loaded" in rows["egl"]["measured"]
    assert rows["egl"]["advice"] == "Run apt-get install -y libegl1 libgl1 libosmesa6."
    assert rows["a run sets"]["figures"]["sets"] == {} and rows["egl devices"]["status"] == "skipped"


def test_egl_without_a_driver_through_the_command(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"file_format_version": "1.0.0", "ICD": {"library_path": "libnowhere.so"}}')
    if rendering.missing_library("egl"):
        pytest.skip("libEGL is not installed")
    status, rows = command(tmp_path, __EGL_VENDOR_LIBRARY_FILENAMES=str(tmp_path / "none.json"))
    assert status == 1 and "without a driver" in rows["egl"]["measured"]
    if rows["osmesa"]["status"] != "fail":
        assert rows["a run sets"]["figures"]["sets"]["MUJOCO_GL"] == "osmesa"
