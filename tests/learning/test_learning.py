"""Each algorithm learns in seconds, compared with a baseline that the test measures. Long budgets are marked slow."""

from __future__ import annotations

import json

import pytest

import runs
from powerband.cli import main as cli
from powerband.recipes.snakes import train as snakes
from powerband.recipes.snakes.evaluation import SCRIPTED_OPPONENTS, as_player, play, summary


def trained(tmp_path, *arguments: str):
    run = tmp_path / "run"
    assert cli.main(["train", *arguments, "gpus=none", "tensorboard=false", f"run_dir={run}"]) == 0
    return run


def score(run, capsys, episodes: int = 40) -> dict:
    capsys.readouterr()
    assert cli.main(["eval", str(run), f"episodes={episodes}", "--json"]) == 0
    return json.loads(capsys.readouterr().out)[0]


def test_ppo_balances_the_pole(tmp_path, capsys):
    run = trained(tmp_path, "gym", "variant=cartpole", "env_steps=25000")
    untrained = trained(tmp_path / "base", "gym", "variant=cartpole", "env_steps=1", "epochs=1", "lr=1e-9")
    assert score(run, capsys)["return_low"] > 2 * score(untrained, capsys)["return_high"]


@pytest.mark.slow
def test_dqn_balances_the_pole(tmp_path, capsys):
    arguments = [
        "gym",
        "env_id=CartPole-v1",
        "algo=dqn",
        "num_workers=0",
        "threads=1",
        "off_policy.num_envs=4",
        "n_step=3",
    ]
    settings = ["dqn.hidden=64,64", "dqn.lr=2e-3", "dqn.tau=0.01", "dqn.epsilon_steps=3000", "global_batch_size=64"]
    run = trained(tmp_path, *arguments, *settings, "env_steps=8000", "update_interval=4", "updates_per_interval=3")
    untrained = trained(tmp_path / "base", *arguments, "env_steps=1")
    assert score(run, capsys)["return_low"] > max(80, 2 * score(untrained, capsys)["return_high"])  # random play: 22


@pytest.mark.slow
def test_fast_td3_swings_the_pendulum_up(tmp_path, capsys):
    arguments = ["gym", "variant=fast_td3", "env_id=Pendulum-v1", "num_workers=0", "threads=1", "env_steps=12000"]
    sizes = ["hidden=64,64", "critic_hidden=64,64", "num_envs=16", "global_batch_size=256", "actor_lr=1e-3"]
    run = trained(tmp_path, *arguments, *sizes, "critic_lr=1e-3", "learning_starts=500", "random_steps=500")
    assert score(run, capsys)["return"] > -400  # random play: about -1200


@pytest.mark.slow
def test_sac_swings_the_pendulum_up(tmp_path, capsys):
    arguments = ["gym", "variant=pendulum", "sac.hidden=64,64", "env_steps=5400"]
    sizes = ["global_batch_size=64", "actor_lr=3e-3", "critic_lr=3e-3"]
    run = trained(tmp_path, *arguments, *sizes)
    assert score(run, capsys)["return"] > -400  # random play: about -1200


@pytest.mark.slow
def test_self_play_beats_random_and_its_untrained_self(tmp_path):
    arguments = ["snakes", "on_policy.num_envs=128", "anneal_lr=false", "precision=fp32"]
    run = trained(tmp_path, *arguments, "env_steps=180000")
    untrained = trained(tmp_path / "base", *arguments, "env_steps=1", "lr=1e-9")
    own = as_player(*snakes.load(run))
    for rival in (SCRIPTED_OPPONENTS["random"](), as_player(*snakes.load(untrained))):
        row = summary(play(own, rival, 60, seed=5))
        assert row["decided_won_95"][0] > 0.6, row


@pytest.mark.slow
def test_sac_reaches_minus_200_on_the_pendulum(tmp_path, capsys):
    run = trained(tmp_path, "gym", "variant=pendulum")
    assert score(run, capsys, 100)["return"] >= -200


@pytest.mark.slow
def test_ppo_reaches_475_on_the_pole(tmp_path, capsys):
    run = trained(tmp_path, "gym", "variant=cartpole")
    assert score(run, capsys, 100)["return"] >= 475


@pytest.mark.slow
@pytest.mark.timeout(1800)  # the guide's 3,600 episodes take seven to ten minutes on two cores
def test_ddpg_of_the_guide_beats_random(tmp_path):
    run = trained(tmp_path, *runs.SMALL["ddpg"][:2], "variant=guide")
    row = summary(play(as_player(*snakes.load(run)), SCRIPTED_OPPONENTS["random"](), 100, seed=5))
    assert row["wins"] / max(row["losses"], 1) > 61 / 18, row
