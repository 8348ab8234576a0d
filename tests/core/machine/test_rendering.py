"""Rendering: each rank on its own GPU, the user's variables unchanged, and notices about contradictions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import powerband
from powerband.core.machine import rendering
from powerband.core.machine.egl import EglDevice
from powerband.core.machine.rendering import egl_index, prepare, settings

TWO = [EglDevice(0, cuda=1, uuid="aa"), EglDevice(1, cuda=0, uuid="bb"), EglDevice(2, software=True)]
SOFTWARE = [EglDevice(0, software=True)]
HEADLESS_EGL = {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl", "EGL_PLATFORM": "surfaceless"}


def test_a_cpu_rank_renders_with_egl_else_osmesa_else_nothing_is_set() -> None:
    assert settings({}, "", "").variables == HEADLESS_EGL
    assert settings({}, "no libEGL", "").variables == {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}
    none = settings({}, "no libEGL", "no libOSMesa")
    assert none.variables == {} and "apt-get install -y libegl1 libgl1 libosmesa6" in none.line and not none.notices


def test_with_a_display_the_platform_of_egl_is_not_set() -> None:
    assert "EGL_PLATFORM" not in settings({"DISPLAY": ":0"}, "", "").variables


def test_each_rank_renders_on_its_own_gpu() -> None:
    for gpu, index in ((0, "1"), (1, "0")):
        found = settings({}, "", "", gpu, devices=TWO)
        assert {found.variables[name] for name in rendering.DEVICE_VARIABLES} == {index}
        assert f"device {index}" in found.line and f"cuda:{gpu}" in found.line and not found.notices


def test_the_uuid_takes_precedence_over_the_number() -> None:
    assert egl_index(TWO, 0, "aa") == 0  # CUDA_VISIBLE_DEVICES=1: cuda:0 of this rank is EGL device 0
    assert egl_index(TWO, 0) == 1
    assert egl_index(TWO, 1, "cc") == 0  # EGL does not list this UUID, so the number decides
    assert egl_index(TWO, 2, "cc") is None
    assert egl_index(SOFTWARE, 0, "aa") is None


def test_a_gpu_that_egl_does_not_list_is_reported() -> None:
    found = settings({}, "", "", 0, devices=SOFTWARE)
    assert "in software" in found.line and "NVIDIA_DRIVER_CAPABILITIES" in found.line
    assert found.variables == HEADLESS_EGL


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"MUJOCO_GL": "osmesa"}, {"PYOPENGL_PLATFORM": "osmesa"}),
        ({"PYOPENGL_PLATFORM": "osmesa"}, {"MUJOCO_GL": "osmesa"}),
        ({"MUJOCO_GL": "disabled"}, {}),
        ({"MUJOCO_GL": "glfw", "DISPLAY": ":0"}, {}),
        ({"EGL_PLATFORM": "device"}, {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}),
        (
            {"MUJOCO_EGL_DEVICE_ID": "1"},
            {**HEADLESS_EGL, "EGL_DEVICE_ID": "1", "EGL_VISIBLE_DEVICES": "1"},
        ),
    ],
)
def test_the_users_variables_stay_and_determine_the_others(given: dict[str, str], added: dict[str, str]) -> None:
    found = settings(given, "", "", 0, devices=TWO)
    assert not set(found.variables) & set(given) and not found.notices
    assert {name: value for name, value in found.variables.items() if name in added} == added
    if not added or "osmesa" in added.values():
        assert found.variables == added


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}, ["contradict", "Unset PYOPENGL_PLATFORM"]),
        ({"MUJOCO_EGL_DEVICE_ID": "0"}, ["MUJOCO_EGL_DEVICE_ID=0", "every rank", "EGL device 1", "unset"]),
        ({"LIBGL_ALWAYS_SOFTWARE": "1"}, ["LIBGL_ALWAYS_SOFTWARE=1", "CPU", "unset"]),
        ({"MUJOCO_GL": "glfw"}, ["needs a display", "MUJOCO_GL=egl"]),
    ],
)
def test_a_contradiction_is_a_notice(given: dict[str, str], parts: list[str]) -> None:
    (notice,) = settings(given, "", "", 0, devices=TWO).notices
    assert all(part in notice for part in parts), notice


def test_a_backend_without_its_library_is_a_notice_and_not_changed() -> None:
    found = settings({"MUJOCO_GL": "egl"}, "cannot open shared object file", "")
    assert "MUJOCO_GL" not in found.variables
    assert "cannot open shared object file" in found.notices[0] and "apt-get install" in found.notices[0]


def test_prepare_sets_the_ranks_own_gpu_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "query_egl", lambda: ("", TWO))
    monkeypatch.setattr(rendering, "cuda_index_and_uuid", lambda device: (device.index, "bb"))
    environment: dict[str, str] = {}
    prepare(SimpleNamespace(type="cuda", index=0), environment)
    assert environment["MUJOCO_GL"] == "egl" and environment["MUJOCO_EGL_DEVICE_ID"] == "1"


def test_an_egl_that_crashes_falls_back_to_osmesa(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        raise rendering.EglError("an EGL driver crashed")

    monkeypatch.setattr(rendering, "egl_devices", crash)
    monkeypatch.setattr(rendering, "missing_library", lambda backend: "")
    environment: dict[str, str] = {}
    prepare(None, environment)
    assert environment["MUJOCO_GL"] == "osmesa"


def test_a_run_prints_its_rendering_and_its_workers_inherit_it(tmp_path: Path) -> None:
    """The environment of this test writes its variables to a file; the command line trains it."""
    (tmp_path / "witness.py").write_text(
        "import os, json, pathlib, gymnasium\n"
        "from gymnasium.envs.classic_control.pendulum import PendulumEnv\n"
        "class Witness(PendulumEnv):\n"
        "    def __init__(self, **options):\n"
        "        names = ('MUJOCO_GL', 'PYOPENGL_PLATFORM', 'EGL_PLATFORM')\n"
        "        found = {name: os.environ.get(name) for name in names}\n"
        f"        pathlib.Path({str(tmp_path)!r}, f'seen-{{os.getpid()}}.json').write_text(json.dumps(found))\n"
        "        super().__init__(**options)\n"
        "gymnasium.register('Witness-v0', Witness, max_episode_steps=50)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in HEADLESS_EGL}
    environment["PYTHONPATH"] = f"{Path(powerband.__file__).parents[1]}{os.pathsep}{tmp_path}"
    arguments = "train gym env_id=witness:Witness-v0 gpus=none threads=1 tensorboard=false num_workers=2 sac.hidden=8"
    arguments += f" off_policy.num_envs=2 env_steps=60 learning_starts=40 run_dir={tmp_path}/run"
    command = [sys.executable, "-m", "powerband", *arguments.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    worker_variables = [json.loads(path.read_text()) for path in tmp_path.glob("seen-*.json")]
    expected = settings({}, *_unavailable_backends()).variables
    assert len(worker_variables) == 2 and all(
        {name: value for name, value in found.items() if value} == expected for found in worker_variables
    ), worker_variables
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("rendering ")]
    assert settings({}, *_unavailable_backends()).line in line


def _unavailable_backends() -> tuple[str, str]:
    return rendering.query_egl()[0], rendering.missing_library("osmesa")
