"""Off-policy learning rates fall linearly in proportion, from a share of the budget on."""

from __future__ import annotations

import pytest

import runs
from powerband.cli import main as cli


def test_ddpg_is_annealed_too(tmp_path):
    options = ["ddpg.actor_lr=1e-3", "ddpg.critic_lr=2e-3", "env_steps=200", "anneal_from=0"]
    actor, critic = sorted(rates(runs.train("ddpg", tmp_path / "run", *options)).values())
    assert 0 < actor < 1e-4 and critic == pytest.approx(2 * actor)


def rates(run_dir):
    return {name: leaf for name, leaf in runs.state(run_dir).items() if name.endswith("adam/lr")}


def test_rates_fall_to_the_end_of_the_budget(tmp_path):
    options = ["sac.actor_lr=1e-3", "sac.critic_lr=2e-3", "env_steps=200", "num_workers=0"]
    constant = rates(runs.train("sac", tmp_path / "constant", *options))
    annealed = rates(runs.train("sac", tmp_path / "annealed", *options, "anneal_from=0.5"))
    assert sorted(constant.values()) == [1e-3, 2e-3]
    actor, critic = sorted(annealed.values())
    # two of two hundred steps remained at the last update: one fiftieth of the second half
    assert actor == pytest.approx(1e-3 * 0.02, rel=1e-6) and critic == pytest.approx(2 * actor)


def test_rates_rise_in_the_warm_up_and_reach_the_setting(tmp_path):
    options = ["sac.actor_lr=1e-3", "sac.critic_lr=2e-3", "env_steps=60", "num_workers=0", "update_interval=2"]
    half = rates(runs.train("sac", tmp_path / "half", *options, "lr_warmup_updates=38"))
    # 20 updates: the last two are set after 18, at 19 / 38 of the rate
    assert sorted(half.values()) == [pytest.approx(5e-4), pytest.approx(1e-3)]
    done = rates(runs.train("sac", tmp_path / "done", *options, "lr_warmup_updates=5"))
    assert sorted(done.values()) == [1e-3, 2e-3]


def test_a_resume_continues_with_the_rate_of_its_step(tmp_path):
    options = ["anneal_from=0.2", "log_interval=50", "num_workers=0"]
    one = runs.train("sac", tmp_path / "one", "env_steps=200", *options)
    two = runs.train("sac", tmp_path / "two", "env_steps=120", "off_policy.anneal_from=1", *options[1:])
    runs.resume("sac", two, "env_steps=200", "anneal_from=0.2")
    assert rates(one) == rates(two)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [("ddpg", "anneal_from=-1", "-1 is below 0"), ("sac", "anneal_from=2", "2 is above 1")],
)
def test_invalid_shares_are_refused(name, option, message, tmp_path, capsys):
    options = [*runs.SMALL[name], *runs.COMMON, f"run_dir={tmp_path / 'run'}", option]
    assert cli.main(["train", *options]) == 2
    assert message in capsys.readouterr().err
