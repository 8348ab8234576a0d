"""Training of environments with images, dicts, masks and several agents, from the command line to the evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from powerband.cli import main as cli
from powerband.core.config import resolve
from powerband.core.errors import ConfigError
from powerband.recipes.gym import RECIPE

SMALL = ("env_steps=64", "num_envs=2", "num_workers=0", "gpus=none", "tensorboard=false", "threads=1", "precision=fp32")
ON_POLICY = ("algo=ppo", "num_steps=8", "minibatches=2", "epochs=1")
OFF_POLICY = ("learning_starts=16", "random_steps=16", "global_batch_size=8", "replay_size=64", "update_interval=8")


def train_and_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture, *arguments: str, trust: bool = False) -> dict:
    run = tmp_path / "run"
    assert cli.main(["train", "gym", *arguments, *SMALL, f"run_dir={run}"]) == 0
    capsys.readouterr()
    assert cli.main(["eval", str(run), "episodes=2", "--json", *["--trust"] * trust]) == 0
    return json.loads(capsys.readouterr().out)[0]


@pytest.mark.parametrize(
    "algo", [ON_POLICY, ("algo=sac", *OFF_POLICY), ("algo=td3", *OFF_POLICY)], ids=lambda each: each[0]
)
def test_a_camera_in_a_dict_is_trained_on(tmp_path, capsys, monkeypatch, algo):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    row = train_and_evaluate(tmp_path, capsys, "env_id=camera_env:CameraReach-v0", "frame_stack=2", *algo, trust=True)
    assert row["episodes"] == 2 and row["length"] == 10


def test_normalised_rewards_and_observations_do_not_change_the_metrics(tmp_path, capsys):
    settings = ("env_id=CartPole-v1", "normalize_reward=true", "clip_reward=0.5", "ppo.normalize_obs=true", *ON_POLICY)
    row = train_and_evaluate(tmp_path, capsys, *settings)
    assert row["return"] == row["length"], "a step of CartPole gives 1"
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["charts/episodic_return"] == last["charts/episodic_length"] > 5


def test_masked_actions_and_categories_are_trained_on(tmp_path, capsys):
    row = train_and_evaluate(tmp_path, capsys, "env_id=Taxi-v4", "action_mask=true", *ON_POLICY)
    assert row["return"] > -2 * row["length"], "a mask excludes the actions that cost 10"


def test_actions_of_several_entries_are_trained_on_and_masked(tmp_path, capsys):
    row = train_and_evaluate(
        tmp_path, capsys, "env_id=contract.registered:Dials-v0", "action_mask=true", *ON_POLICY, trust=True
    )
    assert row["length"] == 6 and row["return"] >= 0, "a forbidden choice costs 100"


@pytest.mark.parametrize("algo", ["sac", "td3", "dqn"])
def test_actions_of_several_entries_are_refused_by_other_algorithms(tmp_path, capsys, algo):
    arguments = [
        "train",
        "gym",
        "env_id=contract.registered:Dials-v0",
        f"algo={algo}",
        *SMALL,
        f"run_dir={tmp_path / 'r'}",
    ]
    assert cli.main(arguments) != 0
    message = capsys.readouterr().err
    assert f"algo={algo} needs" in message and "algo=ppo" in message


@pytest.mark.parametrize("algo", ["sac", "td3", "fast_td3"])
def test_goals_are_relabelled(tmp_path, capsys, algo):
    arguments = ("env_id=contract.registered:Reach-v0", f"algo={algo}", "hindsight=4", *OFF_POLICY)
    assert train_and_evaluate(tmp_path, capsys, *arguments, trust=True)["length"] == 10


def test_relabelling_needs_a_vectorised_reward(tmp_path, capsys):
    arguments = ["env_id=contract.registered:ReachOne-v0", "algo=sac", "hindsight=4", *OFF_POLICY, *SMALL]
    assert cli.main(["train", "gym", *arguments, f"run_dir={tmp_path / 'run'}"]) != 0
    assert "compute_reward is not vectorised" in capsys.readouterr().err


def test_agents_of_pettingzoo_are_trained_on(tmp_path, capsys):
    pytest.importorskip("pettingzoo")
    train_and_evaluate(tmp_path, capsys, "env_id=pettingzoo.classic.rps_v2:parallel_env", *ON_POLICY)


def test_arguments_of_the_environment_are_json(tmp_path, capsys):
    settings = ("env_id=FrozenLake-v1", 'env_kwargs={"is_slippery": false, "map_name": "8x8"}')
    train_and_evaluate(tmp_path, capsys, *settings, *ON_POLICY)
    for text in ("is_slippery=false", "[1]", "{'a': 1}"):
        with pytest.raises(ConfigError, match="env_kwargs=.* is not a JSON object"):
            resolve(RECIPE.Config, [f"env_kwargs={text}"])


@pytest.mark.parametrize("workers", [0, 1])
def test_the_folder_of_a_run_without_environments_can_be_used_again(tmp_path, capsys, monkeypatch, workers):
    (tmp_path / "driver_env.py").write_text(
        """import os
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Env(CartPoleEnv):
    def __init__(self):
        if os.environ.get("DRIVER_MISSING"):
            raise RuntimeError("the driver is not running")
        super().__init__()

gymnasium.register("Driver-v0", Env, max_episode_steps=20)
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    settings = [f"num_workers={workers}" if each.startswith("num_workers") else each for each in SMALL]
    arguments = ["train", "gym", "env_id=driver_env:Driver-v0", *ON_POLICY, *settings, f"run_dir={tmp_path / 'run'}"]
    monkeypatch.setenv("DRIVER_MISSING", "yes")
    with pytest.raises(RuntimeError, match="the driver is not running"):
        cli.main(arguments)
    assert not (tmp_path / "run").exists()
    monkeypatch.delenv("DRIVER_MISSING")
    assert cli.main(arguments) == 0, capsys.readouterr().err


def test_a_resume_with_another_algorithm_is_refused_before_it_begins(tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["train", "gym", "env_id=CartPole-v1", *ON_POLICY, *SMALL, f"run_dir={run}"]) == 0
    capsys.readouterr()
    assert cli.main(["train", "gym", "algo=dqn", f"resume={run}"]) == 2
    output = capsys.readouterr()
    assert "trained with algo=ppo" in output.err and not output.out


def test_an_environment_without_images_has_no_video_and_one_episode_has_no_interval(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples")
    run = tmp_path / "run"
    arguments = ["train", "gym", "env_id=corridor:Corridor-v0", *ON_POLICY, *SMALL, f"run_dir={run}"]
    assert cli.main(arguments) == 0
    capsys.readouterr()
    assert cli.main(["eval", str(run), "episodes=1", "--trust"]) == 0
    output = capsys.readouterr().out
    assert "no video: corridor:Corridor-v0 does not render images" in output and "env_kwargs" not in output
    assert "in 1 episode of" in output and "nan" not in output
