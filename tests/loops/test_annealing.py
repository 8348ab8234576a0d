"""Off-policy learning rates fall from a share of the budget on, in proportion, and where there is none it is said."""

from __future__ import annotations

import pytest

import runs
from powerband.cli import main as cli


def test_ddpg_is_annealed_too(tmp_path):
    words = ["ddpg.actor_lr=1e-3", "ddpg.critic_lr=2e-3", "env_steps=200", "anneal_from=0"]
    actor, critic = sorted(rates(runs.train("ddpg", tmp_path / "run", *words)).values())
    assert 0 < actor < 1e-4 and critic == pytest.approx(2 * actor)


def rates(run_dir):
    return {name: leaf for name, leaf in runs.state(run_dir).items() if name.endswith("adam/lr")}


def test_rates_fall_to_the_end_of_the_budget(tmp_path):
    words = ["sac.actor_lr=1e-3", "sac.critic_lr=2e-3", "env_steps=200"]
    kept = rates(runs.train("sac", tmp_path / "kept", *words))
    fell = rates(runs.train("sac", tmp_path / "fell", *words, "anneal_from=0.5"))
    assert sorted(kept.values()) == [1e-3, 2e-3]
    actor, critic = sorted(fell.values())
    # the last update was made with two of two hundred steps to go: one fiftieth of the second half
    assert actor == pytest.approx(1e-3 * 0.02, rel=1e-6) and critic == pytest.approx(2 * actor)


def test_a_resume_goes_on_at_the_rate_of_its_place(tmp_path):
    words = ["anneal_from=0.2", "log_interval=50"]
    one = runs.train("sac", tmp_path / "one", "env_steps=200", *words)
    two = runs.train("sac", tmp_path / "two", "env_steps=120", "off_policy.anneal_from=1", "log_interval=50")
    runs.resume("sac", two, "env_steps=200", "anneal_from=0.2")
    assert rates(one) == rates(two)


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [("ddpg", "anneal_from=-1", "outside 0 to 1"), ("sac", "anneal_from=2", "outside 0 to 1")],
)
def test_what_cannot_be_annealed_is_refused(name, word, said, tmp_path, capsys):
    words = [*runs.SMALL[name], *runs.COMMON, f"run_dir={tmp_path / 'run'}", word]
    assert cli.main(["train", *words]) == 2
    assert said in capsys.readouterr().err
