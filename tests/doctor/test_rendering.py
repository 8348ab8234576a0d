"""Rendering: who really renders, and why a backend does not, in words and with what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import powerband
from powerband.core.egl import EglDevice, EglError
from powerband.doctor import rendering
from powerband.doctor.child import Outcome
from powerband.doctor.rendering import backend_row, explain
from powerband.doctor.scope import Scope

pytest.importorskip("mujoco")


def test_hardware_is_ok_software_is_said_out_loud_and_a_blank_picture_fails() -> None:
    works: dict[str, bool] = {}
    row = backend_row("egl", works, function="doctor.faulty:hardware_picture")
    assert row.status == "ok" and "NVIDIA H200" in row.measured and "900 frames/s at 128 px" in row.measured
    assert works == {"egl": True} and row.figures["software"] is False
    assert backend_row("egl", works, function="doctor.faulty:blank_picture").status == "fail"
    soft = rendering._rendered("egl", {**row.figures, "version": "", "renderer": "llvmpipe (LLVM 15)", "blank": False})
    assert soft.status == "warn" and soft.measured.startswith("SOFTWARE RENDERING: llvmpipe")


@pytest.mark.parametrize("name", ["llvmpipe (LLVM 15.0.6, 256 bits)", "softpipe", "Software Rasterizer", "swrast"])
def test_names_of_software(name: str) -> None:
    assert rendering.is_software(name) and not rendering.is_software("NVIDIA GeForce RTX 4090/PCIe/SSE2")


@pytest.mark.parametrize(("function", "words"), [("hang", "gave no answer within 3 s"), ("crash", "died of SIGSEGV")])
def test_a_driver_that_hangs_or_crashes_is_said_and_survived(function: str, words: str) -> None:
    row = backend_row("egl", {}, function=f"doctor.faulty:{function}", timeout_s=3 if function == "hang" else 60)
    assert row.status == "fail" and words in row.measured and "driver" in row.advice


def test_osmesa_is_no_loss_where_egl_works() -> None:
    for works, status in (({"egl": True}, "warn"), ({"egl": False}, "fail"), ({}, "fail")):
        assert backend_row("osmesa", works, function="doctor.faulty:raises").status == status


UNPRINTABLE = "EGLError: EGL_NOT_INITIALIZED in eglMakeCurrent"


@pytest.mark.parametrize(
    ("devices", "output", "cause", "advice"),
    [
        ([], "", "no driver behind it", "libegl-mesa0"),
        ([EglDevice(0, software=True, error="EGL_NOT_INITIALIZED")], "swrast_dri.so", "0 EGL_NOT_INITIALIZED", "-dri"),
        ([EglDevice(0, error="EGL_BAD_ACCESS")], "", "0 EGL_BAD_ACCESS", "video and render"),
        ([EglDevice(0), EglDevice(1, error="EGL_BAD_ACCESS")], "", UNPRINTABLE, "MUJOCO_EGL_DEVICE_ID"),
        (EglError("an EGL driver crashed (signal 11)"), "", "crashed (signal 11)", "apt-get install"),
    ],
)
def test_the_true_cause_of_an_egl_failure(
    monkeypatch: pytest.MonkeyPatch, devices: Any, output: str, cause: str, advice: str
) -> None:
    def ask(open_each: bool) -> list[EglDevice]:
        if isinstance(devices, EglError):
            raise devices
        return devices

    monkeypatch.setattr(rendering, "missing", lambda backend: "")
    monkeypatch.setattr(rendering, "egl_devices", ask)
    found = explain("egl", Outcome(problem=UNPRINTABLE, kind="error", output=output))
    assert cause in found[0] and advice in found[1]


def devices_rows(monkeypatch: pytest.MonkeyPatch, devices: list[EglDevice], gpus: int) -> dict[str, Any]:
    monkeypatch.setattr(rendering, "missing", lambda backend: "")
    monkeypatch.setattr(rendering, "egl_devices", lambda open_each: devices)
    scope = Scope()
    scope.__dict__["devices"] = ["cpu", *range(gpus)]
    return {row.name: row for row in rendering.devices_rows(scope)}


def test_the_map_from_cuda_to_egl(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [EglDevice(0, cuda=1, vendor="NVIDIA"), EglDevice(1, cuda=0, vendor="NVIDIA"), EglDevice(2, software=True)]
    found = devices_rows(monkeypatch, two, 2)
    assert found["cuda to egl"].figures["cuda_to_egl"] == {"1": 0, "0": 1}
    assert "cuda:1 is EGL device 0" in found["cuda to egl"].measured
    assert found["egl device 2"].measured == "software"


def test_gpus_that_egl_does_not_see_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    row = devices_rows(monkeypatch, [EglDevice(0, software=True, vendor="Mesa Project")], 1)["cuda to egl"]
    assert row.status == "fail" and "NVIDIA_DRIVER_CAPABILITIES" in row.advice


def test_each_gpu_is_rendered_on_with_what_its_rank_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [EglDevice(0, cuda=1), EglDevice(1, cuda=0)]
    monkeypatch.setattr(rendering, "look_at_egl", lambda: ("", two))
    monkeypatch.setattr(rendering, "identity", lambda gpu: (int(gpu.removeprefix("cuda:")), ""))
    for gpu, device in (("cuda:0", "1"), ("cuda:1", "0")):
        row = rendering.own_gpu_row(gpu, function="doctor.faulty:picture_of_device")
        assert row.status == "ok" and row.name == f"egl {gpu}"
        assert row.measured.startswith(f"EGL device {device}: device {device} of NVIDIA")
    assert rendering.own_gpu_row("cuda:2").status == "skipped"
    assert rendering.own_gpu_row("cuda:0", function="doctor.faulty:crash").status == "fail"


def test_variables_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBGL_ALWAYS_SOFTWARE", "1")
    monkeypatch.setenv("HABITAT_SIM_LOG", "quiet")
    row = rendering.variables_row()
    assert row.status == "warn" and "HABITAT_SIM_LOG=quiet: what habitat-sim prints" in row.measured
    assert "LIBGL_ALWAYS_SOFTWARE=1 renders on the CPU" in row.advice


def test_what_the_user_set_wrongly_stands_in_what_a_run_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("PYOPENGL_PLATFORM", "osmesa")
    scope = Scope()
    scope.__dict__["devices"] = ["cpu"]
    assert "contradict" in rendering.run_row(scope).advice


def command(tmp_path: Path, **environment: str) -> tuple[int, dict[str, Any]]:
    """(exit status, rows by name) of ``powerband doctor rendering`` with other variables."""
    known = {name: value for name, value in os.environ.items() if name not in rendering.VARIABLES}
    known |= {"PYTHONPATH": str(Path(powerband.__file__).parents[1]), **environment}
    words = [sys.executable, "-m", "powerband", "doctor", "rendering", "--json"]
    done = subprocess.run(words, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=200)
    return done.returncode, {row["name"]: row for row in json.loads(done.stdout)["rows"]}


def test_a_missing_library_through_the_command(tmp_path: Path) -> None:
    """Files of those names that are no libraries stand before the real ones."""
    for name in ("EGL", "OSMesa", "GL", "OpenGL", "GLESv2"):
        for version in ("", *(f".{number}" for number in range(10))):
            (tmp_path / f"lib{name}.so{version}").write_text("no library")
    status, rows = command(tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert status == 1 and rows["egl"]["status"] == rows["osmesa"]["status"] == "fail"
    assert "libEGL cannot be loaded" in rows["egl"]["measured"]
    assert rows["egl"]["advice"] == "Run apt-get install -y libegl1 libgl1 libosmesa6."
    assert rows["a run sets"]["figures"]["sets"] == {} and rows["egl devices"]["status"] == "skipped"


def test_no_driver_behind_egl_through_the_command(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"file_format_version": "1.0.0", "ICD": {"library_path": "libnowhere.so"}}')
    if rendering.missing("egl"):
        pytest.skip("no libEGL here")
    status, rows = command(tmp_path, __EGL_VENDOR_LIBRARY_FILENAMES=str(tmp_path / "none.json"))
    assert status == 1 and "no driver behind it" in rows["egl"]["measured"]
    if rows["osmesa"]["status"] != "fail":
        assert rows["a run sets"]["figures"]["sets"]["MUJOCO_GL"] == "osmesa"
