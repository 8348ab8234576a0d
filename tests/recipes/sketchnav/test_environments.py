"""The training environments of sketchnav: with MuJoCo, the workers read the user's file, which is never written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerband.cli.catalogue import configure
from powerband.recipes.sketchnav import environments
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes


@pytest.mark.parametrize("written", ["train.safetensors", "./train.safetensors", "{folder}//train.safetensors", ""])
def test_a_file_of_episodes_is_read_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(environments, "find_spec", lambda name: name)
    created: list[Any] = []
    monkeypatch.setattr(environments, "WorkerVecEnv", lambda envs, **rest: created.extend(envs))
    arguments = ["variant=smoke", "renderer=mujoco", "num_workers=0"]
    source_config = configure("sketchnav", [*arguments, "scene_seed=7"])[2].config
    load_episodes(source_config, "train").save(tmp_path / "train.safetensors", source_config.scenes, "train", 7)
    before = (tmp_path / "train.safetensors").read_bytes()
    run: Any = SimpleNamespace(
        dir=tmp_path / "run",
        device=torch.device("cpu"),
        ranks=SimpleNamespace(leads=True, world_size=1, rank=0, barrier=lambda: None),
    )
    run.dir.mkdir()
    config = configure("sketchnav", [*arguments, f"episode_file={written.format(folder=tmp_path)}"])[2].config
    environments.make_training_env(config, run, load_episodes(config, "train"))
    assert (tmp_path / "train.safetensors").read_bytes() == before
    file = Path(created[0][1]["file"])
    assert file.samefile(tmp_path / "train.safetensors" if written else run.dir / "episodes.safetensors")
    assert (run.dir / "episodes.safetensors").exists() == (not written)
