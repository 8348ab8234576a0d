"""Every option of the guide changes behaviour, and a test shows how."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import runs
from powerband.cli import main as cli


def losses(run_dir) -> list:
    return [line["losses/critic"] for line in runs.metrics(run_dir) if "losses/critic" in line]


def test_update_interval_gathers_updates_and_keeps_their_number(tmp_path):
    each = runs.train("ddpg", tmp_path / "1", "env_steps=440", "log_interval=4", "--update_interval", "1")
    tens = runs.train("ddpg", tmp_path / "100", "env_steps=440", "log_interval=4", "--update_interval", "100")
    counts = [[line["grad_steps"] for line in runs.metrics(run)] for run in (each, tens)]
    assert counts[0][-1] == counts[1][-1] == 400
    jumps = [max(b - a for a, b in zip(count, count[1:], strict=False)) for count in counts]
    assert jumps == [4, 100]


def test_updates_per_interval_changes_the_ratio(tmp_path):
    run = runs.train("ddpg", tmp_path / "run", "env_steps=440", "update_interval=10", "updates_per_interval=3")
    assert runs.metrics(run)[-1]["grad_steps"] == 40 * 3


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run of 120 steps."""
    return runs.train("ddpg", tmp_path_factory.mktemp("runs") / "base", "env_steps=120")


@pytest.mark.parametrize(
    "words", [("--batch_size", "64"), ("--a_lr", "1e-2"), ("--c_lr", "1e-2"), ("--seed", "5"), ("--gamma", "0.5")]
)
def test_options_that_change_the_learning(words, base, tmp_path):
    other = runs.SMALL["ddpg"] if words[0] != "--batch_size" else [w for w in runs.SMALL["ddpg"] if "batch" not in w]
    changed = tmp_path / "changed"
    assert cli.main(["train", *other, *runs.COMMON, f"run_dir={changed}", "env_steps=120", *words]) == 0
    assert any("learner" in name for name in runs.differences(base, changed)), words


def test_batch_size_is_the_number_of_rows_drawn(tmp_path, capsys):
    arguments = [argument for argument in runs.SMALL["ddpg"] if "batch" not in argument]
    assert (
        cli.main(["train", *arguments, *runs.COMMON, f"run_dir={tmp_path / 'r'}", "env_steps=60", "--batch_size", "48"])
        == 0
    )
    captured = capsys.readouterr()
    assert "48 over 1 rank(s) = 48 each" in captured.out
    assert "global_batch_size" in captured.err and "per rank" in captured.err


def test_max_episodes_is_a_budget(tmp_path):
    run = runs.train(
        "ddpg",
        tmp_path / "run",
        "--max_episodes",
        "2",
        "log_interval=100",
        "updates_per_interval=1",
        "update_interval=50",
    )
    assert runs.metrics(run)[-1]["env_steps"] == 400


def test_load_model_resumes_a_run(tmp_path):
    run = runs.train("ddpg", tmp_path / "run", "env_steps=100")
    assert cli.main(["train", "snakes", "--load_model", str(run), "env_steps=200"]) == 0
    assert runs.state(run)["shared/run/env_steps"] == 200


def test_the_resolved_configuration_is_saved_with_the_run(tmp_path):
    run = runs.train("ddpg", tmp_path / "run", "env_steps=60", "--a_lr", "3e-4")
    saved = json.loads((run / "config.json").read_text())
    assert saved["ddpg"]["actor_lr"] == 3e-4
    assert saved["off_policy"]["global_batch_size"] == 32


@pytest.mark.parametrize("name", ["ppo", "ddpg", "bicnet", "sac", "cartpole", "coma", "iac", "mappo"])
def test_every_algorithm_trains_evaluates_and_exports(name, tmp_path, capsys):
    from safetensors.torch import load_file

    run = runs.train(name, tmp_path / "run", "env_steps=200")
    assert all(torch.isfinite(tensor).all() for tensor in load_file(run / "policy" / "model.safetensors").values())
    arguments = ["episodes=2", "video=false", "opponents=random"]
    arguments = ["episodes=2"] if name in ("sac", "cartpole") else arguments
    arguments = ["missions=2", "planners=none"] if name in ("coma", "iac", "mappo") else arguments
    capsys.readouterr()
    assert cli.main(["eval", str(run), *arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert next(row[unit] for unit in ("games", "episodes", "missions") if unit in row) == 2
    assert cli.main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "charts/SPS" in page or "env_steps" in page
    assert "src='http" not in page and 'src="http' not in page


def test_eval_of_a_named_checkpoint_is_of_that_one(tmp_path, capsys):
    run = runs.train("sac", tmp_path / "run", "env_steps=200", "save_interval=100")
    first, last = sorted(
        (path for path in (run / "checkpoints").iterdir() if path.name.isdigit()), key=lambda p: p.name
    )
    shorter = shutil.copytree(run, tmp_path / "shorter")
    shutil.rmtree(shorter / "checkpoints" / last.name)
    earned = []
    for target in (run, first, shorter):
        capsys.readouterr()
        assert cli.main(["eval", str(target), "episodes=2", "--json"]) == 0
        earned.append(json.loads(capsys.readouterr().out)[0]["return"])
    assert earned[1] == earned[2] != earned[0]
    assert (first / "eval-episodes.json").exists() and not (last / "eval-episodes.json").exists()
    (first / "shared.safetensors").write_bytes(b"cut")
    assert cli.main(["eval", str(first), "episodes=2"]) == 2
    assert "shared.safetensors cannot be used: it has 3 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("observation", ["features", "planes", "fork35", "baseline26"])
def test_every_observation_trains_by_self_play_and_plays(observation, tmp_path, capsys):
    run = runs.train("ppo", tmp_path / "run", "env_steps=400", f"observation={observation}")
    capsys.readouterr()
    assert cli.main(["eval", str(run), "episodes=2", "video=false", "opponents=random", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["games"] == 2
