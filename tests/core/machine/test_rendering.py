"""What a run sets for rendering: each rank on its own GPU, nothing over what the user set, notices where that errs."""

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


def test_with_a_display_egl_is_not_told_how_to_start() -> None:
    assert "EGL_PLATFORM" not in settings({"DISPLAY": ":0"}, "", "").variables


def test_each_rank_renders_on_its_own_gpu() -> None:
    for gpu, index in ((0, "1"), (1, "0")):
        found = settings({}, "", "", gpu, devices=TWO)
        assert {found.variables[name] for name in rendering.DEVICE_VARIABLES} == {index}
        assert f"device {index}" in found.line and f"cuda:{gpu}" in found.line and not found.notices


def test_identity_comes_before_the_number() -> None:
    assert egl_index(TWO, 0, "aa") == 0  # CUDA_VISIBLE_DEVICES=1: this rank's cuda:0 is what EGL calls 0
    assert egl_index(TWO, 0) == 1
    assert egl_index(TWO, 1, "cc") == 0  # an identity that EGL does not know: the number is all there is
    assert egl_index(TWO, 2, "cc") is None
    assert egl_index(SOFTWARE, 0, "aa") is None


def test_a_gpu_that_egl_does_not_see_is_said() -> None:
    found = settings({}, "", "", 0, devices=SOFTWARE)
    assert "in software" in found.line and "NVIDIA_DRIVER_CAPABILITIES" in found.line
    assert found.variables == HEADLESS_EGL


@pytest.mark.parametrize(
    ("said", "kept"),
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
def test_what_the_user_set_stays_and_the_rest_follows_it(said: dict[str, str], kept: dict[str, str]) -> None:
    found = settings(said, "", "", 0, devices=TWO)
    assert not set(found.variables) & set(said) and not found.notices
    assert {name: value for name, value in found.variables.items() if name in kept} == kept
    if not kept or "osmesa" in kept.values():
        assert found.variables == kept


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ({"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}, ["contradict", "Unset PYOPENGL_PLATFORM"]),
        ({"MUJOCO_EGL_DEVICE_ID": "0"}, ["MUJOCO_EGL_DEVICE_ID=0", "every rank", "EGL device 1", "unset"]),
        ({"LIBGL_ALWAYS_SOFTWARE": "1"}, ["LIBGL_ALWAYS_SOFTWARE=1", "CPU", "unset"]),
        ({"MUJOCO_GL": "glfw"}, ["needs a display", "MUJOCO_GL=egl"]),
    ],
)
def test_a_contradiction_is_a_notice(said: dict[str, str], parts: list[str]) -> None:
    (notice,) = settings(said, "", "", 0, devices=TWO).notices
    assert all(part in notice for part in parts), notice


def test_a_backend_without_its_library_is_a_notice_and_not_changed() -> None:
    found = settings({"MUJOCO_GL": "egl"}, "cannot open shared object file", "")
    assert "MUJOCO_GL" not in found.variables
    assert "cannot open shared object file" in found.notices[0] and "apt-get install" in found.notices[0]


def test_prepare_sets_the_ranks_own_gpu_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "query_egl", lambda: ("", TWO))
    monkeypatch.setattr(rendering, "identity", lambda device: (device.index, "bb"))
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


def test_a_run_says_it_sets_it_and_its_workers_inherit_it(tmp_path: Path) -> None:
    """A user's environment, which writes what it was started with, trained through the command line."""
    (tmp_path / "witness.py").write_text(
        "import os, json, pathlib, gymnasium\n"
        "from gymnasium.envs.classic_control.pendulum import PendulumEnv\n"
        "class Witness(PendulumEnv):\n"
        "    def __init__(self, **words):\n"
        "        names = ('MUJOCO_GL', 'PYOPENGL_PLATFORM', 'EGL_PLATFORM')\n"
        "        found = {name: os.environ.get(name) for name in names}\n"
        f"        pathlib.Path({str(tmp_path)!r}, f'seen-{{os.getpid()}}.json').write_text(json.dumps(found))\n"
        "        super().__init__(**words)\n"
        "gymnasium.register('Witness-v0', Witness, max_episode_steps=50)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in HEADLESS_EGL}
    environment["PYTHONPATH"] = f"{Path(powerband.__file__).parents[1]}{os.pathsep}{tmp_path}"
    words = "train gym env_id=witness:Witness-v0 gpus=none threads=1 tensorboard=false num_workers=2 sac.hidden=8"
    words += f" off_policy.num_envs=2 env_steps=60 learning_starts=40 run_dir={tmp_path}/run"
    command = [sys.executable, "-m", "powerband", *words.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = [json.loads(path.read_text()) for path in tmp_path.glob("seen-*.json")]
    expected = settings({}, *_here()).variables
    assert len(seen) == 2 and all(
        {name: value for name, value in found.items() if value} == expected for found in seen
    ), seen
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("rendering ")]
    assert settings({}, *_here()).line in line


def _here() -> tuple[str, str]:
    return rendering.query_egl()[0], rendering.missing_library("osmesa")
