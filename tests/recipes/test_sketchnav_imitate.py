"""Policies of chunks on demonstrations: through the command line, resumed, evaluated, refused where they must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import runs
from powerband import cli
from powerband.algos.chunks import ChunkConfig
from powerband.catalogue import configure
from powerband.core.config import ConfigError
from powerband.envs.sketchnav.env import SketchNavEnv
from powerband.envs.sketchnav.episodes import Scenes, draw_episodes
from powerband.recipes.sketchnav_imitate import ChunkWalker, demonstrations_of

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    words = [*runs.SMALL["sketchnav"], "demos", *runs.COMMON, "net.use_rgb=false", f"demos_dir={folder / 'demos'}"]
    words.insert(1, words.pop(2))  # the stage follows the recipe
    assert cli.main(["train", *words, "demo_episodes=3", f"run_dir={folder / 'run'}"]) == 0
    return folder / "demos"


@pytest.mark.parametrize("algo", ["clone", "diffusion"])
def test_training_resumes_bit_by_bit_and_is_evaluated(
    algo: str, demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [f"algo={algo}", f"demos_dir={demos}", "net.use_rgb=false"]
    whole = runs.train("sketchnav", tmp_path / "whole", *words)
    half = runs.train("sketchnav", tmp_path / "half", *words, "env_steps=32")
    runs.resume("sketchnav", half, "env_steps=64")
    assert runs.differences(whole, half) == []
    capsys.readouterr()
    assert cli.main(["eval", str(whole), "splits=val_unseen", "policies=policy,expert", "threads=1"]) == 0
    assert "policy" in capsys.readouterr().out
    rows = json.loads((whole / "eval-sketchnav.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == 2 * ["policy", "expert"] and rows[1]["success"] == 1.0


def test_other_plans_and_missing_demonstrations_are_refused(demos: Path) -> None:
    def config_of(*words: str):
        return configure("sketchnav", ["variant=smoke", "algo=clone", *words])[2].config

    own = [f"demos_dir={demos}", "net.use_rgb=false", "scenes.sketch=blank", "seed=5"]
    made = demonstrations_of(config_of(*own, "scene_seed=0"))
    assert made.rows == len(made.fields["episode"])
    with pytest.raises(ConfigError, match="seed 0, this run has 5. Write scene_seed=0"):
        demonstrations_of(config_of(*own))
    assert sorted(set(made.fields["episode"].tolist())) == [0, 1, 2]
    with pytest.raises(ConfigError, match="powerband train sketchnav demos"):
        demonstrations_of(config_of())
    with pytest.raises(ConfigError, match="was recorded with pixels 36, this run has 40"):
        demonstrations_of(config_of(f"demos_dir={demos}", "net.use_rgb=false", "pixels=40"))
    with pytest.raises(ConfigError, match="was recorded with sensors .*'rgb_noise': 0.0.*, this run has .*5.0"):
        demonstrations_of(config_of(f"demos_dir={demos}", "net.use_rgb=false", "sensors.rgb_noise=5"))
    with pytest.raises(ConfigError, match="no field rgb"):
        demonstrations_of(config_of(f"demos_dir={demos}"))


class Recorded:
    """Makes chunks that say which row and how often they were asked for; keeps what it was shown."""

    def __init__(self, execute: int) -> None:
        self.config = ChunkConfig(horizon=4, execute=execute, frames=2)
        self.encoder = type("Encoder", (), {"rgb": None, "depth": True})
        self.shown: list[dict] = []

    def act(self, obs: dict, carry: None, explore: bool):
        self.shown.append(obs)
        return torch.tensor([[1, 2, 1, 0]]).repeat(len(obs["episode"]), 1), {}, None


def test_chunks_are_taken_in_part_pictures_follow_and_an_episode_starts_anew() -> None:
    scenes = Scenes(most_m=8.0, plans=2, goals=1, starts=1, sketch="blank", sketch_px=16)
    env = SketchNavEnv(2, draw_episodes(scenes, "train", 0), pixels=16, in_turns=True)
    learner = Recorded(execute=2)
    walker, obs = ChunkWalker(learner), env.observe()
    taken, pictures = [], []
    for _ in range(4):
        pictures.append(obs["depth"].clone())
        taken.append(walker(env, obs, None)[0].tolist())
        obs = env.step(torch.tensor(taken[-1])).obs
    assert taken == [[1, 1], [2, 2], [1, 1], [2, 2]] and len(learner.shown) == 2
    assert torch.equal(learner.shown[0]["depth"], pictures[0].repeat(1, 2, 1, 1))
    assert torch.equal(learner.shown[1]["depth"], torch.cat([pictures[1], pictures[2]], 1))
    env.step(torch.tensor([0, 1]))  # the first stops: its next episode starts, the other goes on
    obs = env.observe()
    walker(env, obs, None)
    assert len(learner.shown[2]["episode"]) == 2
    assert torch.equal(learner.shown[2]["depth"][0], obs["depth"][0].repeat(2, 1, 1))
    assert not torch.equal(learner.shown[2]["depth"][1], obs["depth"][1].repeat(2, 1, 1))
