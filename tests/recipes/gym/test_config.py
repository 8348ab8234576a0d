"""Sources of the settings of gym: tuned entries of a task come first, and every other source overrides them."""

from __future__ import annotations

import pytest

from powerband.cli.catalogue import configure
from powerband.recipes.gym import tuned
from powerband.recipes.gym.config import ALGORITHMS

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
