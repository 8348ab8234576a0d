"""Training and evaluation of sketchnav by the command line: resume, sensors, episode files, demonstrations."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import runs
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.core.machine import rendering
from powerband.core.rank_context import RankContext
from powerband.data.recorded.recording import Recording, read_recording
from powerband.recipes.sketchnav.env.world import STOP
from powerband.recipes.sketchnav.evaluation import evaluate
from powerband.recipes.sketchnav.learners import build_learner
from powerband.recipes.sketchnav.plans.episodes.episodes import OBSERVED, Episodes
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes
from powerband.recipes.sketchnav.settings import PAGE_PX, SPLITS


def test_one_environment_is_enough_for_a_run(tmp_path: Path) -> None:
    """NUM_PROCESSES=1 is how the guide debugs in one process."""
    run_dir = runs.train("sketchnav", tmp_path / "run", "NUM_PROCESSES=1", "env_steps=16")
    assert runs.metrics(run_dir)


def test_training_resumes_bit_by_bit_and_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    whole = runs.train("sketchnav", tmp_path / "whole", "anneal_lr=false")
    half = runs.train("sketchnav", tmp_path / "half", "anneal_lr=false", "env_steps=32")
    runs.resume("sketchnav", half, "env_steps=64")
    assert runs.differences(whole, half) == []
    watched = runs.train("sketchnav", tmp_path / "watched", "anneal_lr=false", "eval_interval=16")
    assert any("eval/success" in line for line in runs.metrics(watched))
    # Evaluations sample actions, too, and must not change what is learned.
    assert not [name for name in runs.differences(whole, watched) if "learner" in name]
    capsys.readouterr()
    names = ("random", "forward-and-turn", "likeliest", "policy", "expert")
    assert cli.main(["eval", str(whole), "splits=val_unseen", "threads=1"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*names, "success"))
    rows = {row["policy"]: row for row in json.loads((whole / "eval-sketchnav.json").read_text())["rows"]}
    assert list(rows) == list(names) and list((whole / "videos").iterdir())
    assert rows["policy"]["soft_spl"] != rows["likeliest"]["soft_spl"]
    found = []
    for temperature in (1, 0.001):
        arguments = (
            f"splits=val_unseen sketches=abstract policies=likeliest,policy video=false temperature={temperature}"
        )
        assert cli.main(["eval", str(whole), *arguments.split(), "threads=1"]) == 0
        found.append(json.loads((whole / "eval-sketchnav.json").read_text())["rows"])
    assert found[0][1] == rows["policy"]  # does not depend on the policies before
    assert found[0][0] == found[1][0] and found[0][0]["soft_spl"] != found[0][1]["soft_spl"]
    assert {**found[1][1], "policy": "likeliest"} == found[1][0]  # close to 0, the likeliest action is sampled
    assert cli.main(["eval", str(whole), "temperature=0"]) != 0
    assert "policies=likeliest" in capsys.readouterr().err
    assert cli.main(["eval", str(whole), "policies=expert", "temperature=0.5"]) != 0
    assert "of algo=ppo only" in capsys.readouterr().err


NOISE = "sensors.depth_noise=0.01 sensors.rgb_noise=10 sensors.gps_noise_m=0.1 sensors.compass_noise_deg=3".split()


def test_training_is_evaluated_on_all_plans_of_a_set_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    def play(episodes: Episodes, *_: object, order: torch.Tensor | None) -> dict[str, torch.Tensor]:
        played.append((episodes, order))
        return {name: torch.zeros(2) for name in ("success", *evaluate.EPISODE_METRICS)}

    monkeypatch.setattr(evaluate, "run_episodes", play)
    config = configure("sketchnav", ["variant=smoke", "eval_plans=2", "eval_episodes=2"])[2].config
    learner = build_learner(config, RankContext.single())[0]
    evaluate.HeldOutEvaluation(config, learner, torch.device("cpu"))()
    ((episodes, order),) = played
    assert len(episodes) == 4 and episodes.plan[order].tolist() == [0, 1]
    reported = load_episodes(config, "val_unseen")
    assert reported.digest(OBSERVED) != episodes.digest(OBSERVED)


def test_noisy_sensors_change_a_training_and_it_resumes_bit_by_bit(tmp_path: Path) -> None:
    plain = runs.train("sketchnav", tmp_path / "plain", "anneal_lr=false")
    whole = runs.train("sketchnav", tmp_path / "whole", "anneal_lr=false", *NOISE)
    half = runs.train("sketchnav", tmp_path / "half", "anneal_lr=false", "env_steps=32", *NOISE)
    runs.resume("sketchnav", half, "env_steps=64")
    assert runs.differences(whole, half) == [] and runs.differences(whole, plain) != []


def test_a_continued_recording_with_noisy_sensors_is_the_same(tmp_path: Path) -> None:
    own = [*runs.SMALL["sketchnav"][1:], *runs.COMMON, *NOISE]

    def record(name: str, *more: str) -> dict:
        arguments = [*own, f"demos_dir={tmp_path / name}", *more, f"run_dir={tmp_path / (name + '-run')}"]
        assert cli.main(["train", "sketchnav", "demos", *arguments]) == 0
        return read_recording(tmp_path / name)[0]

    whole = record("whole")
    facts = read_recording(tmp_path / "whole")[1]
    assert facts["sensors"]["rgb_noise"] == 10 and len(whole["gps"].unique()) > 10
    part = Recording(tmp_path / "part", facts)
    for number in (1, 2):
        rows = whole["episode"] == number
        part.add(number, {name: value[rows] for name, value in whole.items() if name != "episode"})
    again = record("part")
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_mujoco_has_its_own_light() -> None:
    recipe, _, resolved = configure("sketchnav", ["renderer=mujoco", "sensors.shading=0.2"])
    with pytest.raises(ConfigError, match="sensors.shading=0.2 with renderer=mujoco"):
        recipe.check_sizes(resolved.config, 1)


@pytest.mark.parametrize(
    ("algo", "message"), [("ppo", "the images of training only"), ("clone", "no effect with algo")]
)
def test_a_notice_says_that_evaluations_use_the_ray_caster(algo: str, message: str) -> None:
    for renderer in ("mujoco", "caster"):
        notices = configure("sketchnav", [f"renderer={renderer}", f"algo={algo}"])[2].notices
        assert any(message in notice for notice in notices) == (renderer == "mujoco")


def test_only_the_ray_casters_environment_has_an_expert(tmp_path: Path) -> None:
    recipe, _, resolved = configure("sketchnav", ["renderer=mujoco", "ppo.expert_coef=1"])
    with pytest.raises(ConfigError, match="ppo.expert_coef=1 with renderer=mujoco"):
        recipe.check_sizes(resolved.config, 1)
    arguments = [*runs.SMALL["sketchnav"], *runs.COMMON, "ppo.expert_coef=1", f"run_dir={tmp_path / 'told'}"]
    assert cli.main(["train", *arguments]) == 0
    assert all("losses/expert" in line for line in runs.metrics(tmp_path / "told") if "losses/policy" in line)


def test_runs_train_on_episode_files_and_are_evaluated_on_own_drawings(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = [*runs.SMALL["sketchnav"], *runs.COMMON]
    assert cli.main(["train", "sketchnav", "episodes", *arguments[1:], f"run_dir={tmp_path / 'sets'}"]) == 0
    file = tmp_path / "sets" / "episodes-train.safetensors"
    for split in SPLITS:
        episodes, metadata = Episodes.load(file.with_name(f"episodes-{split}.safetensors"))
        scenes = metadata["scenes"]
        assert metadata["split"] == split
        assert scenes["plans"] * scenes["goals"] * scenes["starts"] == len(episodes)
    plain = runs.train("sketchnav", tmp_path / "plain")
    read = runs.train("sketchnav", tmp_path / "read", f"episode_file={file}")
    assert runs.differences(plain, read) == []
    drawings = tmp_path / "sets" / "plans-val_unseen"
    command = ["eval", str(plain), "splits=val_unseen", "policies=policy", "threads=1", f"drawings={drawings}"]
    assert cli.main(command) == 0
    rows = json.loads((plain / "eval-sketchnav.json").read_text())["rows"]
    assert [(row["sketch"], row["episodes"]) for row in rows] == [("own", 2)]
    (drawings / "1.png").unlink()
    assert cli.main(command) == 0
    (row,) = json.loads((plain / "eval-sketchnav.json").read_text(), parse_constant=pytest.fail)["rows"]
    assert row["episodes"] == 1 and row["spl_low"] is row["spl_high"] is None, "one episode has no interval"
    (drawings / "0.png").rename(drawings / "2.png")
    assert cli.main(command) == 2
    assert "this split has the episodes 0 to 1" in capsys.readouterr().err
    (drawings / "2.png").unlink()
    Image.new("RGB", (512, 512), (255, 255, 255)).save(drawings / "0.png")
    assert cli.main(command) == 2
    assert "has no blue start dot" in capsys.readouterr().err
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"none")
    recipe, _, resolved = configure("sketchnav", [f"episode_file={other}"])
    with pytest.raises(ConfigError, match="powerband train sketchnav episodes"):
        recipe.check_sizes(resolved.config, 1)


def test_a_file_of_other_episodes_is_compared_with_the_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    own = [*runs.SMALL["sketchnav"][1:], *runs.COMMON]
    other_config = configure("sketchnav", [*own, "scenes.sketch_px=40", "scenes.starts=1"])[2].config
    file, episodes = tmp_path / "other.safetensors", generate_episodes(other_config.scenes, "val_unseen", 7)
    episodes.save(file, other_config.scenes, "val_unseen", 7)
    recipe, _, resolved = configure("sketchnav", [*own, f"episode_file={file}"])
    with pytest.raises(ConfigError, match="scenes.sketch_px=36, but .* have 40 pixels. Write scenes.sketch_px=40"):
        recipe.check_sizes(resolved.config, 1)
    arguments = [*own, f"episode_file={file}", "scenes.sketch_px=40", f"run_dir={tmp_path / 'sets'}"]
    assert cli.main(["train", "sketchnav", "episodes", *arguments]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "differs from this run: split=val_unseen, not train, scene_seed=7, not 0, scenes.starts=1, not 2" in shown
    assert not (tmp_path / "sets" / "episodes-train.safetensors").exists()
    (template,) = (tmp_path / "sets" / "plans-train").iterdir()
    true = generate_episodes(replace(other_config.scenes, sketch="true", sketch_px=PAGE_PX), "val_unseen", 7).sketch[0]
    assert template.name == "0.png" and np.array_equal(np.asarray(Image.open(template)), true.permute(1, 2, 0).numpy())


@pytest.mark.slow
def test_mujoco_renders_in_supervised_workers(tmp_path: Path) -> None:
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    if not rendering.prepare(environment={}).variables:
        pytest.skip("neither EGL nor OSMesa is installed")
    runs.train("sketchnav", tmp_path / "run", "renderer=mujoco", "num_workers=2", "env_steps=16")
    assert "rendering" in (tmp_path / "run" / "train.log").read_text() and runs.metrics(tmp_path / "run")


def test_demonstrations_are_recorded_once_and_continued(tmp_path: Path) -> None:
    own = [*runs.SMALL["sketchnav"][1:], *runs.COMMON]
    arguments = [*own, f"demos_dir={tmp_path / 'demos'}", "demo_noise=0.3"]
    plain = [*own, f"demos_dir={tmp_path / 'plain'}"]
    assert cli.main(["train", "sketchnav", "demos", *plain, f"run_dir={tmp_path / 'undisturbed'}"]) == 0

    def record(name: str) -> dict:
        assert cli.main(["train", "sketchnav", "demos", *arguments, f"run_dir={tmp_path / name}"]) == 0
        return read_recording(tmp_path / "demos")[0]

    whole = record("first")
    assert sorted(set(whole["episode"].tolist())) == [0, 1, 2, 3]
    assert len(whole["episode"]) > 1.1 * len(read_recording(tmp_path / "plain")[0]["episode"])
    ends = whole["episode"].diff(append=torch.tensor([-1])) != 0
    assert bool((whole["action"][ends] == STOP).all()) and bool((whole["action"][~ends] != STOP).all())
    assert bool((whole["gps"][0] == 0).all()) and whole["depth"].shape[1:] == (1, 36, 36)
    facts = read_recording(tmp_path / "demos")[1]
    shutil.rmtree(tmp_path / "demos")
    part = Recording(tmp_path / "demos", facts)  # the folder of a process that was killed after two episodes
    for number in (1, 2):
        rows = whole["episode"] == number
        part.add(number, {name: value[rows] for name, value in whole.items() if name != "episode"})
    again = record("second")
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_predictions_are_trained_with_true_goals(tmp_path: Path) -> None:
    options = ("net.goal=true", "net.align_page=true", "net.drawn_goal=true", "scenes.sketch=abstract")
    run_dir = runs.train("sketchnav", tmp_path / "goal", *options, "env_steps=32")
    last = runs.metrics(run_dir)[-1]
    assert last["losses/goal"] > 0 and last["losses/frame"] > 0
