"""The stage ``demos`` of libero records missing demonstrations, overwrites none, and can be interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from powerband.cli.catalogue import configure
from powerband.data.recorded.recording import Recording, read_recording
from powerband.recipes.libero import demos

pytest.importorskip("libero", reason="LIBERO is not installed")


def test_a_new_episode_after_a_removal_overwrites_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("libero", ["variant=smoke", "demo_episodes=3"])[2].config
    recording = Recording(tmp_path, {})
    for number in range(3):
        recording.add(number, {"start": torch.full((2,), number)})
    (tmp_path / "episodes" / "00000001.safetensors").unlink()  # as the message about a damaged file advises
    monkeypatch.setattr(demos, "make_libero_vec_env", lambda *_, **__: None)
    monkeypatch.setattr(demos, "task_script", lambda task: ((), ()))
    task = config.selected_tasks()[0]
    session = demos._DemonstrationSession(config, task, recording, 1, print)
    session.steps[0] = [{"action": torch.zeros(7)}]
    session._end_episode(0, success=True)
    episodes = read_recording(tmp_path)[0]
    assert recording.numbers == [0, 2, 3] and episodes["start"][:4].tolist() == [0, 0, 2, 2]


def test_tasks_without_a_recording_are_recorded_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(demos, "record", lambda config, task, *_: recorded.append(task.key))
    run = SimpleNamespace(dir=tmp_path, console=SimpleNamespace(note=print), received_signal="")

    def finish(key: str) -> None:
        (tmp_path / key).mkdir()
        (tmp_path / key / "manifest.json").write_text("{}")

    config = configure("libero", ["tasks=0,1", "record_missing=true", f"demos_dir={tmp_path}"])[2].config
    finish("libero_90-02")
    demos.record_missing(config, run)
    assert recorded == [], "the recordings of another task are the training data"
    finish("libero_90-00")
    demos.record_missing(config, run)
    assert recorded == ["libero_90-01"]
    finish("libero_90-01")
    demos.record_missing(config, run)
    assert recorded == ["libero_90-01"]


def test_a_signal_ends_the_recording_and_the_same_command_continues_it(tmp_path: Path) -> None:
    options = ["variant=smoke", f"demos_dir={tmp_path / 'demos'}", f"run_dir={tmp_path / 'run'}", "num_workers=1"]
    command = [sys.executable, "-m", "powerband", "train", "libero", "demos", *options]
    process = subprocess.Popen([*command, "demo_episodes=1000"], stderr=subprocess.PIPE, text=True)
    episodes = tmp_path / "demos" / "libero_90-00" / "episodes"
    deadline = time.monotonic() + 120
    while not list(episodes.glob("*.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM, message
    num_recorded = len(list(episodes.glob("*.safetensors")))
    assert 0 < num_recorded < 1000 and not (episodes.parent / "manifest.json").exists()
    command[-2] = f"run_dir={tmp_path / 'again'}"
    subprocess.run([*command, f"demo_episodes={num_recorded + 1}"], check=True, timeout=120)
    starts = read_recording(episodes.parent)[0]["start"]
    assert len(set(starts.tolist())) == num_recorded + 1
    command[-2] = f"run_dir={tmp_path / 'more'}"
    more = subprocess.run([*command, "demo_episodes=1000"], check=True, timeout=120, capture_output=True, text=True)
    assert f"has {num_recorded + 1} episodes, and demo_episodes=1000 asks for more" in more.stdout
