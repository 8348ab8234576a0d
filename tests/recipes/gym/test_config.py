"""Sources of the settings of gym: tuned entries of a task come first, and every other source overrides them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.core.machine import device
from powerband.envs.adapters.wrapping import Wrapping
from powerband.recipes.gym import tuned
from powerband.recipes.gym.config import ALGORITHMS, Config, Evaluation, check, imports, notices
from powerband.recipes.gym.evaluation import EVAL_SEED

SETTINGS = {"ppo.lr": 0.125, "on_policy.num_steps": 16, "on_policy.gamma": 0.5}
ACROBOT = ["env_id=Acrobot-v1", "algo=ppo"]


@pytest.fixture(autouse=True)
def entry(monkeypatch):
    monkeypatch.setitem(tuned.TUNED, ("Acrobot-v1", "ppo"), SETTINGS)
    monkeypatch.setitem(tuned.TUNED, ("CartPole-v1", "ppo"), SETTINGS)


def test_the_entry_of_the_task_is_used_and_reported():
    resolved = configure("gym", [*ACROBOT, "gamma=0.9"])[2]
    config = resolved.config
    assert (config.ppo.lr, config.on_policy.num_steps, config.on_policy.gamma) == (0.125, 16, 0.9)
    assert resolved.sources["ppo.lr"] == "hyper=tuned" and resolved.sources["on_policy.gamma"] == "command line"
    assert any("hyper=tuned: Acrobot-v1 with algo=ppo" in line and "ppo.lr=0.125" in line for line in resolved.notices)


@pytest.mark.parametrize(
    "arguments",
    [[*ACROBOT, "hyper=default"], ["env_id=LunarLander-v3", "algo=ppo"], ["variant=cartpole", "ppo.lr=0.001"]],
    ids=["hyper=default", "another task", "a variant"],
)
def test_no_entry_is_used(arguments):
    resolved = configure("gym", arguments)[2]
    assert resolved.config.ppo.lr != 0.125
    assert not any("hyper=tuned" in line for line in resolved.notices)


def test_every_entry_is_valid():
    for (task, algo), settings in tuned.TUNED.items():
        assert algo in ALGORITHMS
        sections = {algo, ALGORITHMS[algo].loop, "wrap", "run"}
        assert all("." not in name or name.split(".")[0] in sections for name in settings), (task, algo)
        configure("gym", [f"env_id={task}", f"algo={algo}"])


def test_relabelled_goals_and_repeated_actions_are_refused_together():
    config = Config(off_policy=replace(Config().off_policy, hindsight=4), wrap=Wrapping(action_repeat=2))
    with pytest.raises(ConfigError, match="hindsight=4 does not support wrap.action_repeat=2.*Write wrap.action_rep"):
        check(config, 1)
    check(replace(config, algo="ppo"), 1)


def test_names_to_import_are_found_at_any_depth():
    config = Config(env_kwargs='{"inner": {"env_id": "pkg:Env-v0", "parts": ["lib:Part", 3]}, "plain": "text"}')
    assert imports(config)["env_kwargs"] == ("pkg:Env-v0", "lib:Part")


def test_a_deadline_without_workers_is_reported():
    without, used = (notices(Config(worker_deadline_s=5.0, num_workers=count)) for count in (0, 2))
    assert any("worker_deadline_s=5: no effect" in line for line in without)
    assert not any("worker_deadline_s" in line for line in [*used, *notices(Config(num_workers=0))])


def test_tuned_sizes_are_rounded_to_the_number_of_ranks(monkeypatch):
    monkeypatch.setitem(tuned.TUNED, ("Acrobot-v1", "ppo"), {"on_policy.num_envs": 4})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert configure("gym", ACROBOT)[2].config.on_policy.num_envs == 6


def test_workers_are_started_for_the_cores_of_one_rank(monkeypatch):
    monkeypatch.setattr(device, "cores", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert device.cores_per_rank() == 2


def test_the_evaluation_of_a_run_repeats_no_episode_that_selected_its_checkpoint():
    assert Evaluation().seed != EVAL_SEED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["algo=sac", "lr=1e-3"],
            "algo=sac has no option lr; dqn.lr, ppo.lr are of other algorithms. Write sac.actor_lr or",
        ),
        (["algo=ppo", "critic_lr=1e-3"], "algo=ppo has no option critic_lr"),
        (["env_steps"], "write env_steps=VALUE"),
    ],
)
def test_options_of_other_algorithms_and_without_a_value_are_explained(arguments, message, capsys):
    assert cli.main(["train", "gym", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_names_of_stable_baselines_are_read_as_those_of_powerband():
    resolved = configure("gym", ["algo=ppo", "learning_rate=0.002", "n_steps=64", "n_epochs=3", "ent_coef=0.1"])[2]
    assert resolved.config.ppo.lr == 0.002 and resolved.config.ppo.entropy_coef == 0.1
    assert (resolved.config.on_policy.num_steps, resolved.config.on_policy.epochs) == (64, 3)
    assert any("learning_rate=0.002 (command line) is read as ppo.lr" in notice for notice in resolved.notices)
