"""Imitation in sketchnav: training, resume and evaluation by the command line; refused recordings; the actor."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import runs
from powerband.algos.chunks.settings import ChunkConfig
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.config import check
from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.env.world import STOP
from powerband.recipes.sketchnav.imitation import recorder
from powerband.recipes.sketchnav.imitation.chunk_actor import NavigationChunkActor
from powerband.recipes.sketchnav.imitation.dataset import load_demonstrations
from powerband.recipes.sketchnav.old_names import RENAMED_SCENES
from powerband.recipes.sketchnav.plans.episodes.episodes import EpisodeConfig
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    arguments = [*runs.SMALL["sketchnav"], "demos", *runs.COMMON, "net.use_rgb=false", f"demos_dir={folder / 'demos'}"]
    arguments.insert(1, arguments.pop(2))  # the stage follows the recipe
    assert cli.main(["train", *arguments, "demo_episodes=3", f"run_dir={folder / 'run'}"]) == 0
    return folder / "demos"


@pytest.mark.parametrize(
    "algo, gru", [pytest.param("clone", 0, marks=pytest.mark.slow), ("diffusion", 0), ("clone", 8)]
)
def test_training_resumes_bit_by_bit_and_is_evaluated(
    algo: str, gru: int, demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = [f"algo={algo}", f"demos_dir={demos}", "net.use_rgb=false", f"chunks.gru={gru}", "chunks.sequence=4"]
    whole = runs.train("sketchnav", tmp_path / "whole", *arguments)
    half = runs.train("sketchnav", tmp_path / "half", *arguments, "env_steps=32")
    runs.resume("sketchnav", half, "env_steps=64")
    assert runs.differences(whole, half) == []
    capsys.readouterr()
    assert cli.main(["eval", str(whole), "splits=val_unseen", "policies=policy,expert", "threads=1"]) == 0
    assert "policy" in capsys.readouterr().out
    rows = json.loads((whole / "eval-sketchnav.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == 2 * ["policy", "expert"] and rows[1]["success"] == 1.0


def test_demonstrations_that_are_missing_or_differ_are_refused(demos: Path) -> None:
    def config_of(*arguments: str):
        return configure("sketchnav", ["variant=smoke", "algo=clone", *arguments])[2].config

    own = [f"demos_dir={demos}", "net.use_rgb=false", "scenes.sketch=blank", "seed=5"]
    demonstrations, _ = load_demonstrations(config_of(*own, "scene_seed=0"))
    assert demonstrations.rows == len(demonstrations.fields["episode"])
    with pytest.raises(ConfigError, match="scene_seed=0, but this run has 5. Write scene_seed=0"):
        load_demonstrations(config_of(*own))
    assert sorted(set(demonstrations.fields["episode"].tolist())) == [0, 1, 2]
    with pytest.raises(ConfigError, match="powerband train sketchnav demos"):
        load_demonstrations(config_of())
    with pytest.raises(ConfigError, match="was recorded with pixels=36, but this run has 40. Write pixels=36"):
        load_demonstrations(config_of(f"demos_dir={demos}", "net.use_rgb=false", "pixels=40"))
    with pytest.raises(ConfigError, match="was recorded with sensors.rgb_noise=0.0, but this run has 5.0"):
        load_demonstrations(config_of(f"demos_dir={demos}", "net.use_rgb=false", "sensors.rgb_noise=5"))
    with pytest.raises(ConfigError, match="no field rgb"):
        load_demonstrations(config_of(f"demos_dir={demos}"))


def test_a_recording_with_random_moves_names_the_replaced_actions(tmp_path: Path) -> None:
    arguments = [*runs.SMALL["sketchnav"], "demos", *runs.COMMON, "net.use_rgb=false", "demo_episodes=1"]
    arguments.insert(1, arguments.pop(2))
    folders = [f"demos_dir={tmp_path / 'demos'}", f"run_dir={tmp_path / 'run'}"]
    assert cli.main(["train", *arguments, "demo_noise=0.5", *folders]) == 0
    own = ["variant=smoke", "algo=clone", "net.use_rgb=false", f"demos_dir={tmp_path / 'demos'}"]
    demonstrations, _ = load_demonstrations(configure("sketchnav", own)[2].config)
    share = demonstrations.fields["replaced"].float().mean()  # a third of the random moves are the follower's own
    assert 0.15 < share < 0.5 and not demonstrations(torch.arange(demonstrations.rows))["valid"].all()


def test_a_policy_acts_while_the_follower_is_recorded(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    clone = runs.train("sketchnav", tmp_path / "clone", "algo=clone", f"demos_dir={demos}", "net.use_rgb=false")
    arguments = ["sketchnav", "demos", *runs.SMALL["sketchnav"][1:], *runs.COMMON, "net.use_rgb=false"]
    arguments += ["demo_episodes=2", f"demos_dir={tmp_path / 'corrected'}", f"demo_policy={clone}"]
    monkeypatch.setattr(recorder, "POLICY_SHARE", 1.0)
    assert cli.main(["train", *arguments, f"run_dir={tmp_path / 'run'}"]) == 0
    own = ["variant=smoke", "algo=clone", "net.use_rgb=false"]
    demonstrations, _ = load_demonstrations(
        configure("sketchnav", [*own, f"demos_dir={tmp_path / 'corrected'}"])[2].config
    )
    first, _ = load_demonstrations(configure("sketchnav", [*own, f"demos_dir={demos}"])[2].config)
    assert sorted(set(demonstrations.fields["episode"].tolist())) == [0, 3], (
        "one has a smooth sketch and one an abstract sketch"
    )
    replaced = demonstrations.fields["replaced"].bool()
    assert replaced.float().mean() > 0.2 and not (replaced & (demonstrations.fields["action"] == 0)).any(), (
        "no STOP is replaced"
    )
    start = torch.tensor([demonstrations.fields["action"][0], first.fields["action"][0]])
    assert start[0] == start[1], "the label of the same state is that of the follower"
    assert demonstrations.rows > first.rows, "a hardly trained policy does not arrive"
    capsys.readouterr()
    for options, message in (
        (["demos", f"demo_policy={tmp_path}"], "demo_policy"),
        (["train", "algo=clone", f"demo_policy={clone}"], "belongs to the stage demos"),
    ):
        assert cli.main(["train", "sketchnav", *options, "variant=smoke", f"run_dir={tmp_path / 'no'}"]) == 2
        assert message in capsys.readouterr().err


def test_a_policy_is_recorded_where_it_finds_the_goal(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    policy = runs.train("sketchnav", tmp_path / "ppo")
    easy = ["rules.success_m=5", "net.use_rgb=false"]  # a hardly trained policy stops at once, often near the goal
    arguments = ["sketchnav", "demos", *runs.SMALL["sketchnav"][1:], *runs.COMMON, *easy, "demo_actions=policy"]
    assert cli.main(["train", *arguments, f"run_dir={tmp_path / 'none'}"]) == 2
    assert "demo_policy= names none" in capsys.readouterr().err
    arguments += [f"demos_dir={tmp_path / 'demos'}", f"demo_policy={policy}"]
    assert cli.main(["train", *arguments, f"run_dir={tmp_path / 'run'}"]) == 0
    left_out = re.search(r"([\d,]+) episodes in which the policy did not find", capsys.readouterr().out)
    own = ["variant=smoke", "algo=clone", *easy, f"demos_dir={tmp_path / 'demos'}"]
    demonstrations, episodes = load_demonstrations(configure("sketchnav", own)[2].config)
    assert left_out is not None and demonstrations.num_episodes == len(episodes) - int(left_out[1].replace(",", "")) > 0
    assert (
        demonstrations.fields["action"][demonstrations.last] == STOP
    ).all() and "replaced" not in demonstrations.fields
    lengths = (demonstrations.last - demonstrations.first + 1).float()
    assert lengths.mean() < 10, "the follower of the shortest path would go to the goal"
    capsys.readouterr()
    never = [argument for argument in arguments if not argument.startswith(("rules.success_m", "demos_dir"))]
    never += ["rules.success_m=0.1", f"demos_dir={tmp_path / 'never'}", f"run_dir={tmp_path / 'never-run'}"]
    assert cli.main(["train", *never]) == 2
    assert "found the goal in none of" in capsys.readouterr().err


def test_recordings_with_the_old_names_of_scenes_are_read(demos: Path, tmp_path: Path) -> None:
    old = {new: name for name, new in RENAMED_SCENES.items()}
    folder = shutil.copytree(demos, tmp_path / "old")
    manifest = json.loads((folder / "manifest.json").read_text())
    scenes = manifest["facts"]["scenes"]
    manifest["facts"]["scenes"] = {old.get(name, name): value for name, value in scenes.items()}
    assert manifest["facts"]["scenes"].keys() >= RENAMED_SCENES.keys()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    arguments = ["variant=smoke", "algo=clone", f"demos_dir={folder}", "net.use_rgb=false"]
    assert load_demonstrations(configure("sketchnav", arguments)[2].config)[0].rows > 0
    with pytest.raises(ConfigError, match="was recorded with scenes.max_path_m=.*, but this run has 20"):
        load_demonstrations(configure("sketchnav", [*arguments, "scenes.most_way_m=20"])[2].config)


class FakeLearner:
    """Stands in for a learner: returns a fixed chunk, and keeps the observations. Its memory counts them."""

    def __init__(self, exec_horizon: int, gru: int = 0) -> None:
        self.config = ChunkConfig(horizon=4, exec_horizon=exec_horizon, frames=2, gru=gru)
        self.observed: list[dict] = []
        self.choices: list[int] = []

    def initial_carry(self, num_envs: int) -> torch.Tensor | None:
        return torch.zeros(num_envs, self.config.gru) if self.config.gru else None

    def encode(self, obs: dict, carry: torch.Tensor | None):
        self.observed.append(obs)
        return torch.zeros(len(obs["episode"]), 4), None if carry is None else carry + 1

    def choose(self, features: torch.Tensor) -> torch.Tensor:
        self.choices.append(len(features))
        return torch.tensor([[1, 2, 1, 0]]).repeat(len(features), 1)


def test_the_actor_executes_part_of_each_chunk_and_restarts_with_an_episode() -> None:
    scenes = EpisodeConfig(max_size_m=8.0, plans=2, goals=1, starts=1, sketch="blank", sketch_px=36)
    env = SketchNavEnv(2, generate_episodes(scenes, "train", 0), pixels=16, sequential=True)
    learner = FakeLearner(exec_horizon=2)
    actor, obs = NavigationChunkActor(learner, ("depth",)), env.observe()
    executed, images = [], []
    for _ in range(4):
        images.append(obs["depth"].clone())
        executed.append(actor(env, obs, None)[0].tolist())
        obs = env.step(torch.tensor(executed[-1])).obs
    assert executed == [[1, 1], [2, 2], [1, 1], [2, 2]] and len(learner.observed) == 2
    assert torch.equal(learner.observed[0]["depth"], images[0].repeat(1, 2, 1, 1))
    assert torch.equal(learner.observed[1]["depth"], torch.cat([images[1], images[2]], 1))
    blind, learner.observed = NavigationChunkActor(learner, ()), []
    assert [blind(env, obs, None)[0].tolist() for _ in range(2)] == [[1, 1], [2, 2]] and len(learner.observed) == 1
    learner.observed = 2 * [{}]
    env.step(torch.tensor([0, 1]))  # the first stops and begins its next episode; the other continues
    obs = env.observe()
    actor(env, obs, None)
    assert len(learner.observed[2]["episode"]) == 2
    assert torch.equal(learner.observed[2]["depth"][0], obs["depth"][0].repeat(2, 1, 1))
    assert not torch.equal(learner.observed[2]["depth"][1], obs["depth"][1].repeat(2, 1, 1))


def test_the_memory_sees_each_step_and_is_cleared_by_a_new_episode() -> None:
    scenes = EpisodeConfig(max_size_m=8.0, plans=2, goals=1, starts=1, sketch="blank", sketch_px=36)
    env = SketchNavEnv(2, generate_episodes(scenes, "train", 0), pixels=16, sequential=True)
    learner = FakeLearner(exec_horizon=2, gru=1)
    actor, obs = NavigationChunkActor(learner, ("depth",)), env.observe()
    for _ in range(3):
        obs = env.step(actor(env, obs, None)[0]).obs
    assert actor.memory.flatten().tolist() == [3, 3] and learner.choices == [2, 2]
    obs = env.step(torch.tensor([0, 1])).obs
    actor(env, obs, None)
    assert actor.memory.flatten().tolist() == [1, 4] and learner.choices == [2, 2, 1]


def test_sizes_of_sequences_that_do_not_fit_are_refused_or_named() -> None:
    own = ["variant=smoke", "algo=clone"]
    config = configure("sketchnav", [*own, "chunks.gru=8", "chunks.sequence=6"])[2].config
    with pytest.raises(ConfigError, match="8 rows on each rank is not a multiple of chunks.sequence=6"):
        check(config, 1)
    with pytest.raises(ConfigError, match="chunks.sequence=5 is odd"):
        configure("sketchnav", [*own, "chunks.gru=8", "chunks.sequence=5"])
    notices = configure("sketchnav", [*own, "chunks.sequence=4"])[2].notices
    assert any("no effect without a memory" in notice for notice in notices)
