"""Resumed runs equal uninterrupted runs bit for bit: weights, replay, noise, counters, environments, metrics."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

import runs
from powerband.cli import main as cli
from powerband.core.run import restore

# (steps before the break, steps in all, log interval): the break falls inside a log interval and inside an episode.
PLANS = {
    "ddpg": (140, 300, 100),
    "bicnet": (140, 240, 100),
    "sac": (150, 460, 100),
    "td3": (150, 460, 100),
    "fast_td3": (150, 460, 100),
    "dqn": (150, 450, 90),
    "prioritised": (150, 270, 90),
    "hindsight": (150, 270, 90),
    "ppo": (8 * 12 * 3, 8 * 12 * 9, 8 * 12 * 2),
    "coma": (5 * 3 * 3, 5 * 3 * 7, 5 * 3 * 2),
    "iac": (5 * 3 * 3, 5 * 3 * 7, 5 * 3 * 2),
    "mappo": (5 * 3 * 3, 5 * 3 * 7, 5 * 3 * 2),
    "cartpole": (64 * 3, 64 * 8, 64 * 2),
    "dials": (64 * 2, 64 * 5, 64 * 2),
    "fused": (64 * 3, 64 * 8, 64 * 2),
    "metaworld": (250, 500, 100),
}


@pytest.mark.parametrize("name", list(PLANS))
def test_a_resumed_run_equals_the_uninterrupted_one(name, tmp_path, capsys):
    half, full, log = PLANS[name]
    if name == "metaworld":
        pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")
    options = (
        [f"log_interval={log}", "anneal_lr=false"]
        if name in ("ppo", "cartpole", "dials", "fused")
        else [f"log_interval={log}"]
    )
    one = runs.train(name, tmp_path / "one", f"env_steps={full}", *options)
    two = runs.train(name, tmp_path / "two", f"env_steps={half}", *options)
    assert runs.differences(one, two), "the interrupted run must differ, or the comparison is void"
    runs.resume(name, two, f"env_steps={full}")
    assert "this resume changes" not in capsys.readouterr().out
    assert runs.differences(one, two) == []
    assert runs.metrics(one) == runs.metrics(two)


@pytest.mark.parametrize("name", ["ddpg", "coma"])
def test_a_run_that_was_killed_after_its_last_checkpoint_makes_no_further_step(name, tmp_path, capsys):
    run = runs.train(name, tmp_path / "run", "env_steps=60")
    before = runs.state(run)
    shutil.rmtree(run / "policy")
    runs.resume(name, run)
    after, output = runs.state(run), capsys.readouterr().out
    assert after["shared/run/env_steps"] == before["shared/run/env_steps"]
    assert after["shared/run/grad_steps"] == before["shared/run/grad_steps"] and "A larger env_steps" in output
    assert (run / "policy" / "model.safetensors").exists(), "the end that was lost follows"
    steps = [line["env_steps"] for line in runs.metrics(run)]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize(
    "name, option, changed",
    [
        ("cartpole", "ppo.hidden=16,16", "ppo.hidden=16,16 (was 16)"),
        ("sac", "sac.hidden=48", "sac.hidden=48 (was 32,32)"),
    ],
)
def test_a_resume_with_another_network_names_the_option_and_changes_nothing(name, option, changed, tmp_path, capsys):
    run = runs.train(name, tmp_path / "run", "env_steps=128")
    stored = (run / "config.json").read_text()
    assert cli.main(["train", "gym", f"resume={run}", option, "env_steps=256"]) == 2
    error = capsys.readouterr().err
    assert f"Options that this resume changes: {changed}." in error and "does not fit this configuration" in error
    assert (run / "config.json").read_text() == stored
    runs.resume(name, run, "env_steps=256")


def test_a_resume_lists_the_options_that_it_changes(tmp_path, capsys):
    run = runs.train("ppo", tmp_path / "run", "env_steps=200")
    runs.resume("ppo", run, "env_steps=400", "ppo.clip=0.1")
    assert "this resume changes ppo.clip=0.1 (was 0.2)" in capsys.readouterr().out
    runs.resume("ppo", run, "env_steps=600")
    assert "this resume changes" not in capsys.readouterr().out, "the new value is now that of the run"


def test_no_option_is_listed_if_the_saved_configuration_is_missing(tmp_path):
    run = SimpleNamespace(storage=SimpleNamespace(writes=True), dir=tmp_path, config=None)
    assert restore._changed(run) == [], "the checkpoint is complete without config.json"


def test_another_seed_gives_another_run(tmp_path):
    one = runs.train("ddpg", tmp_path / "one", "env_steps=100")
    two = runs.train("ddpg", tmp_path / "two", "env_steps=100", "seed=1")
    assert any("actor" in name for name in runs.differences(one, two))


def test_a_resume_without_overlap_runs_the_pending_updates(tmp_path):
    run = runs.train("sac", tmp_path / "run", "env_steps=44", "overlap=true", "num_workers=1", "update_interval=2")
    assert pending_updates(run) > 0
    runs.resume("sac", run, "env_steps=48", "overlap=false")
    assert pending_updates(run) == 0
    assert runs.metrics(run)[-1]["grad_steps"] == 8, "one update per transition after the first 40"


def pending_updates(run_dir):
    return next(leaf for name, leaf in runs.state(run_dir).items() if name.endswith("position/owed"))
