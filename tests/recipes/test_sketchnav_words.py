"""Every word of the guide of sketchnav changes behaviour or is refused with the word to use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from PIL import Image

import runs
from powerband import cli
from powerband.catalogue import configure
from powerband.core import rendering
from powerband.core.config import ConfigError
from powerband.data.recording import Recording, read_recording
from powerband.envs.sketchnav.world import STOP

WORK = [
    (["--gpu-ids", "0,2"], "run.gpus", "0,2"),
    (["--num-gpus", "3"], "run.gpus", "0,1,2"),
    (["--model-dir", "out"], "run.run_dir", "out"),
    (["NUM_PROCESSES=12"], "on_policy.num_envs", 12),
    (["CHECKPOINT_INTERVAL=500"], "run.save_interval", 500),
    (["GPU_IDS=1"], "run.gpus", "1"),
    (["DATASET.DATA_PATH=mine.safetensors"], "episode_file", "mine.safetensors"),
    (["RL.PPO.num_steps=75"], "on_policy.num_steps", 75),
    (["RL.PPO.num_mini_batch=4"], "on_policy.minibatches", 4),
    (["RL.PPO.ppo_epoch=2"], "on_policy.epochs", 2),
    (["RL.PPO.clip_param=0.3"], "ppo.clip", 0.3),
    (["RL.PPO.lr=0.001"], "ppo.lr", 1e-3),
    (["RL.PPO.entropy_coef=0.2"], "ppo.entropy_coef", 0.2),
    (["RL.PPO.value_loss_coef=0.7"], "ppo.value_coef", 0.7),
    (["RL.PPO.max_grad_norm=0.2"], "ppo.max_grad_norm", 0.2),
    (["RL.PPO.gamma=0.9"], "on_policy.gamma", 0.9),
    (["RL.PPO.tau=0.8"], "on_policy.gae_lambda", 0.8),
    (["algo=diffusion", "RL.DIFFUSION.lr=3e-4"], "chunks.lr", 3e-4),
]


@pytest.mark.parametrize(("words", "place", "value"), WORK, ids=lambda value: str(value))
def test_a_word_sets_what_it_is_called_here(words: list[str], place: str, value: object) -> None:
    resolved = configure("sketchnav", words)[2]
    assert attrgetter(place)(resolved.config) == value
    assert attrgetter(place)(configure("sketchnav", [])[2].config) != value


def test_a_file_of_the_older_nesting_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text("NUM_PROCESSES: 6\nRL:\n  PPO:\n    num_steps: 50\n    lr: 1e-4\n")
    config = configure("sketchnav", ["--config", str(file)])[2].config
    assert (config.on_policy.num_envs, config.on_policy.num_steps, config.ppo.lr) == (6, 50, 1e-4)


@pytest.mark.parametrize(
    ("word", "use"),
    [
        ("--exp-config=a.yaml", "--config FILE.yaml"),
        ("--run-type=eval", "powerband eval RUN"),
        ("--eval-best=true", "powerband eval RUN"),
        ("USE_SYNC_VECENV=true", "num_envs=1"),
        ("DEBUG=true", "log_interval_s=1"),
        ("TORCH_GPU_ID=0", "gpus=0,2"),
        ("DATASET.SCENES_DIR=/data", "scenes.plans"),
    ],
)
def test_a_word_that_means_nothing_is_refused_with_the_one_to_use(word: str, use: str) -> None:
    with pytest.raises(ConfigError, match="there is no") as said:
        configure("sketchnav", [word])
    assert use in str(said.value)


def test_pickled_checkpoints_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "ckpt.5.pth").write_bytes(b"")
    with pytest.raises(ConfigError, match="pickles, which run code when they are read"):
        configure("sketchnav", ["--resume-from", str(tmp_path / "ckpt.5.pth")])


def test_one_agent_in_one_process_is_a_run(tmp_path: Path) -> None:
    """The guide's single-process debugging."""
    run_dir = runs.train("sketchnav", tmp_path / "run", "NUM_PROCESSES=1", "env_steps=16")
    assert runs.metrics(run_dir)


def test_training_resumes_bit_by_bit_and_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    whole = runs.train("sketchnav", tmp_path / "whole", "anneal_lr=false")
    half = runs.train("sketchnav", tmp_path / "half", "anneal_lr=false", "env_steps=32")
    runs.resume("sketchnav", half, "env_steps=64")
    assert runs.differences(whole, half) == []
    watched = runs.train("sketchnav", tmp_path / "watched", "anneal_lr=false", "eval_interval=16")
    assert any("eval/success" in line for line in runs.metrics(watched))
    assert not [name for name in runs.differences(whole, watched) if "learner" in name]  # evaluations draw actions too
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
        words = f"splits=val_unseen sketches=abstract policies=likeliest,policy video=false temperature={temperature}"
        assert cli.main(["eval", str(whole), *words.split(), "threads=1"]) == 0
        found.append(json.loads((whole / "eval-sketchnav.json").read_text())["rows"])
    assert found[0][1] == rows["policy"]  # whatever walked before
    assert found[0][0] == found[1][0] and found[0][0]["soft_spl"] != found[0][1]["soft_spl"]
    assert {**found[1][1], "policy": "likeliest"} == found[1][0]  # close to 0 it is the likeliest action
    assert cli.main(["eval", str(whole), "temperature=0"]) != 0
    assert "policies=likeliest" in capsys.readouterr().err
    assert cli.main(["eval", str(whole), "policies=expert", "temperature=0.5"]) != 0
    assert "temperature is of algo=ppo" in capsys.readouterr().err


NOISE = "sensors.depth_noise=0.01 sensors.rgb_noise=10 sensors.gps_noise_m=0.1 sensors.compass_noise_deg=3".split()


def test_noisy_sensors_change_a_training_and_it_resumes_bit_by_bit(tmp_path: Path) -> None:
    plain = runs.train("sketchnav", tmp_path / "plain", "anneal_lr=false")
    whole = runs.train("sketchnav", tmp_path / "whole", "anneal_lr=false", *NOISE)
    half = runs.train("sketchnav", tmp_path / "half", "anneal_lr=false", "env_steps=32", *NOISE)
    runs.resume("sketchnav", half, "env_steps=64")
    assert runs.differences(whole, half) == [] and runs.differences(whole, plain) != []


def test_noisy_demonstrations_that_are_gone_on_with_are_the_same(tmp_path: Path) -> None:
    own = [*runs.SMALL["sketchnav"][1:], *runs.COMMON, *NOISE]

    def record(name: str, *more: str) -> dict:
        words = [*own, f"demos_dir={tmp_path / name}", *more, f"run_dir={tmp_path / (name + '-run')}"]
        assert cli.main(["train", "sketchnav", "demos", *words]) == 0
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


def test_the_light_of_mujoco_is_its_own() -> None:
    recipe, _, resolved = configure("sketchnav", ["renderer=mujoco", "sensors.shading=0.2"])
    with pytest.raises(ConfigError, match="sensors.shading=0.2 with renderer=mujoco"):
        recipe.check(resolved.config, 1)


def test_the_expert_walks_in_the_casters_world_only(tmp_path: Path) -> None:
    recipe, _, resolved = configure("sketchnav", ["renderer=mujoco", "ppo.expert_coef=1"])
    with pytest.raises(ConfigError, match="ppo.expert_coef=1 with renderer=mujoco"):
        recipe.check(resolved.config, 1)
    words = [*runs.SMALL["sketchnav"], *runs.COMMON, "ppo.expert_coef=1", f"run_dir={tmp_path / 'told'}"]
    assert cli.main(["train", *words]) == 0
    assert all("losses/expert" in line for line in runs.metrics(tmp_path / "told") if "losses/policy" in line)


def test_episodes_are_written_trained_on_and_drawn_over(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = [*runs.SMALL["sketchnav"], *runs.COMMON]
    assert cli.main(["train", "sketchnav", "episodes", *words[1:], f"run_dir={tmp_path / 'sets'}"]) == 0
    file = tmp_path / "sets" / "episodes-train.safetensors"
    plain = runs.train("sketchnav", tmp_path / "plain")
    read = runs.train("sketchnav", tmp_path / "read", f"episode_file={file}")
    assert runs.differences(plain, read) == []
    drawings = tmp_path / "sets" / "plans-val_unseen"
    said = ["eval", str(plain), "splits=val_unseen", "policies=policy", "threads=1", f"drawings={drawings}"]
    assert cli.main(said) == 0
    rows = json.loads((plain / "eval-sketchnav.json").read_text())["rows"]
    assert [(row["sketch"], row["episodes"]) for row in rows] == [("own", 2)]
    (drawings / "1.png").unlink()
    (drawings / "0.png").rename(drawings / "2.png")
    assert cli.main(said) == 2
    assert "this split has the episodes 0 to 1" in capsys.readouterr().err
    (drawings / "2.png").unlink()
    Image.new("RGB", (512, 512), (255, 255, 255)).save(drawings / "0.png")
    assert cli.main(said) == 2
    assert "has no start, a blue dot" in capsys.readouterr().err
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"none")
    recipe, _, resolved = configure("sketchnav", [f"episode_file={other}"])
    with pytest.raises(ConfigError, match="powerband train sketchnav episodes"):
        recipe.check(resolved.config, 1)


def test_mujoco_draws_what_agents_see_in_supervised_workers(tmp_path: Path) -> None:
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    if not rendering.prepare(environment={}).variables:
        pytest.skip("neither EGL nor OSMesa is installed")
    command = [sys.executable, "-m", "powerband", "train", *runs.SMALL["sketchnav"], *runs.COMMON]
    command += ["renderer=mujoco", "num_workers=2", "env_steps=16", f"run_dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True)  # MuJoCo takes its renderer when it is imported
    assert done.returncode == 0, done.stderr
    assert "rendering" in (tmp_path / "run" / "train.log").read_text() and runs.metrics(tmp_path / "run")


def test_demonstrations_are_recorded_once_and_gone_on_with(tmp_path: Path) -> None:
    own = [*runs.SMALL["sketchnav"][1:], *runs.COMMON]
    words = [*own, f"demos_dir={tmp_path / 'demos'}", "demo_noise=0.3"]
    plain = [*own, f"demos_dir={tmp_path / 'plain'}"]
    assert cli.main(["train", "sketchnav", "demos", *plain, f"run_dir={tmp_path / 'undisturbed'}"]) == 0

    def record(name: str) -> dict:
        assert cli.main(["train", "sketchnav", "demos", *words, f"run_dir={tmp_path / name}"]) == 0
        return read_recording(tmp_path / "demos")[0]

    whole = record("first")
    assert sorted(set(whole["episode"].tolist())) == [0, 1, 2, 3]
    assert len(whole["episode"]) > 1.1 * len(read_recording(tmp_path / "plain")[0]["episode"])
    ends = whole["episode"].diff(append=torch.tensor([-1])) != 0
    assert bool((whole["action"][ends] == STOP).all()) and bool((whole["action"][~ends] != STOP).all())
    assert bool((whole["gps"][0] == 0).all()) and whole["depth"].shape[1:] == (1, 36, 36)
    facts = read_recording(tmp_path / "demos")[1]
    shutil.rmtree(tmp_path / "demos")
    part = Recording(tmp_path / "demos", facts)  # as a process leaves it that was killed after two episodes
    for number in (1, 2):
        rows = whole["episode"] == number
        part.add(number, {name: value[rows] for name, value in whole.items() if name != "episode"})
    again = record("second")
    assert all(torch.equal(again[name], value) for name, value in whole.items())
