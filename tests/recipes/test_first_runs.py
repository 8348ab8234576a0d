"""The first run of every recipe: ``variant=smoke`` from nothing, with clean caches, and its evaluation with a video."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from powerband.cli import main as cli
from powerband.cli.run_commands import configure_evaluation

CHEAP = "gpus=none threads=1 tensorboard=false".split()
RECIPES: dict[str, tuple[list[str], list[str]]] = {  # further settings that keep the test short
    "gym": (["env_steps=400"], ["episodes=2"]),
    "snakes": (["env_steps=600", "on_policy.num_envs=2", "num_steps=32"], ["episodes=2", "policies=random"]),
    "uav": (["env_steps=60"], ["episodes=2", "policies=random"]),
    "sketchnav": ([], ["episodes=1", "splits=val_unseen", "sketches=smooth", "policies=policy"]),
}
SHARED_OPTIONS = {"episodes", "seed", "policies", "video", "gpus", "precision", "workers"}


def first_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    train, evaluate = RECIPES[name]
    run = folder / "run"
    assert cli.main(["train", name, "variant=smoke", *CHEAP, *train, f"run_dir={run}"]) == 0
    torch.set_num_threads(2)
    assert cli.main(["eval", str(run), *evaluate]) == 0
    assert torch.get_num_threads() == (2 if name == "gym" else 1), "eval uses the threads of the run"
    return run


@pytest.mark.parametrize("name", RECIPES)
def test_the_first_run_ends_with_a_video(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = first_run(name, tmp_path, monkeypatch)
    videos = [path for path in (run / "videos").iterdir() if path.suffix in (".mp4", ".gif")]
    assert videos and all(path.stat().st_size > 500 for path in videos)


@pytest.mark.slow
def test_libero_records_trains_and_evaluates_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libero")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    arguments = [
        "train",
        "libero",
        "pipeline",
        "variant=smoke",
        *CHEAP,
        f"project={project}",
        f"run_dir={tmp_path / 'run'}",
    ]
    assert cli.main(arguments) == 0
    assert list((project / "runs" / "train" / "videos").glob("*.mp4"))
    assert cli.main([*arguments[:-1], f"run_dir={tmp_path / 'again'}"]) == 0, "all stages are done already"


def test_a_refused_run_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = tmp_path / "run"
    assert cli.main(["train", "libero", "variant=tiny", *CHEAP, f"run_dir={run}"]) == 2
    assert "does not exist" in capsys.readouterr().err and not run.exists()


@pytest.mark.parametrize("name", ["gym", "snakes", "uav", "sketchnav", "metaworld", "libero"])
def test_all_recipes_have_the_same_options_of_eval(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(f'{{"recipe": "{name}"}}')
    (tmp_path / "config.json").write_text("{}")
    call = configure_evaluation(
        [str(tmp_path), "best", "episodes=2", "seed=3", "gpus=none", "precision=fp32", "workers=1"]
    )
    assert call is not None and set(vars(call.options)) >= SHARED_OPTIONS
    assert any("no stored checkpoint has an evaluation" in line for line in call.notices)
