"""`powerband estimate` on the command line: table, JSON, price, invalid numbers of ranks, invalid input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runs
from powerband.cli import main as cli
from powerband.core.machine import memory
from powerband.tune.predict import estimate as estimating

COMMON = ["gpus=none", "threads=1", "tensorboard=false"]
LINK = ["latency_us=50", "bandwidth_gb_s=1"]
ROW = {
    "ranks", "steps_per_s", "seconds", "hours", "env_steps", "ends_by", "memory_bytes", "limit", "limit_share",
    "iteration", "apart", "unknown", "cost", "fits",
}  # fmt: skip


def test_json_has_every_row_and_its_assumptions(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "free", lambda device: 2**40)  # this process may have run other tests before
    report = tmp_path / "estimate.json"
    arguments = [
        *runs.SMALL["sac"],
        *COMMON,
        "num_workers=0",
        "env_steps=4000",
        "eval_interval=1000",
        "eval_episodes=2",
    ]
    arguments += ["--ranks", "1,2,3", "--price-per-hour=3600", "--currency", "EUR", "--seconds", "1", *LINK]
    assert cli.main(["estimate", *arguments, f"--json={report}"]) == 0
    result = json.loads(report.read_text())
    assert (result["recipe"], result["stage"], result["currency"]) == ("gym", "train", "EUR")
    assert result["budget"] == {"env_steps": 4000, "time_limit_s": 0.0}
    assert result["comm"]["source"] == "given" and result["comm"]["latency_s"] == pytest.approx(50e-6)
    most_bytes = memory.peak() + 2**30
    one, two, three = result["rows"]
    assert set(one) == set(two) == ROW
    assert three == {"ranks": 3, "skipped": three["skipped"]} and "not divisible by 3 ranks" in three["skipped"]
    for row in (one, two):
        iteration = row["iteration"]
        assert sum(iteration["parts"].values()) == pytest.approx(iteration["seconds"])
        assert row["steps_per_s"] == pytest.approx(iteration["env_steps"] / iteration["seconds"])
        assert (row["env_steps"], row["ends_by"], row["unknown"]) == (4000, "env_steps", [])
        assert row["apart"]["eval"]["times"] == 4 and row["apart"]["eval"]["seconds_each"] > 0.01  # 2 x 200 steps
        evaluating = 4 * row["apart"]["eval"]["seconds_each"]
        assert evaluating < row["seconds"] < evaluating + 4000 / row["steps_per_s"]  # no updates before learning_starts
        assert row["hours"] == pytest.approx(row["seconds"] / 3600)
        assert row["cost"] == pytest.approx(row["seconds"])  # 3600 per hour, for the machine
        assert 100 * 2**20 < row["memory_bytes"] <= most_bytes and row["fits"] is True
        assert iteration["env_steps"] == 2  # both environments, over all ranks
    assert one["iteration"]["parts"]["comm"] == 0 < two["iteration"]["parts"]["comm"]
    assert not [path for path in tmp_path.iterdir() if path != report]


@pytest.mark.slow
def test_ranks_that_this_machine_can_run_are_measured_directly(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(estimating, "cores", lambda: 2)
    monkeypatch.setattr(estimating, "_communication", lambda *arguments: pytest.fail("nothing is forecast here"))
    report = tmp_path / "estimate.json"
    arguments = [*runs.SMALL["sac"], *COMMON, "num_workers=0", "ranks=1,2", "seconds=1", f"--json={report}"]
    assert cli.main(["estimate", *arguments]) == 0
    result = json.loads(report.read_text())
    one, two = result["rows"]
    assert one["iteration"]["env_steps"] == two["iteration"]["env_steps"] == 2
    assert one["iteration"]["parts"]["comm"] == 0 < two["iteration"]["parts"]["comm"]
    assert result["comm"] is None and result["notes"][0] == "1, 2 ranks: measured directly on this machine."


@pytest.mark.slow
def test_table_shows_the_budget_that_ends_the_run_and_the_limiting_part(capsys, monkeypatch):
    monkeypatch.setattr(estimating, "cores", lambda: 1)  # fewer cores than ranks, so that two ranks are forecast
    arguments = [*runs.SMALL["cartpole"], *COMMON, "num_workers=0", "env_steps=1e9", "time_limit_s=7200", "seconds=1"]
    assert cli.main(["estimate", *arguments, "ranks=2"]) == 0  # all-reduces are measured
    text = capsys.readouterr().out
    assert "to 1,000,000,000 env steps or 7200 s, whichever is first" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("2 "))
    assert (
        "time_limit_s" in row
        and row.split()[2] == "2"
        and any(word in row for word in ("update", "act", "env", "comm", "cores"))
    )
    assert "gloo: " in text and "measured between 2 ranks here" in text and "cost" not in text


def test_budget_in_episodes_becomes_a_budget_in_steps(tmp_path: Path):
    report = tmp_path / "estimate.json"
    arguments = [*runs.SMALL["ddpg"], *COMMON, "episodes=50", "ranks=1", "seconds=1", f"--json={report}"]
    assert cli.main(["estimate", *arguments]) == 0
    result = json.loads(report.read_text())
    assert result["budget"]["env_steps"] == result["rows"][0]["env_steps"] == 10_000 and result["comm"] is None


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["ranks=0"], "0 is below 1. Allowed: a list"),
        (["ranks=two"], "ranks=two"),
        (["seconds=0"], "0 is below 1"),
        (["price_per_hour=-1"], "-1 is below 0"),
        (["price_per=day"], "price_per=day"),
        (["latency_us=5"], "a link needs both"),
        (["resume=last"], "last"),
        (["ranks=3"], "not divisible by 3 ranks"),
        (["num_env=8"], "num_envs"),
    ],
)
def test_invalid_input_gives_one_line_and_status_2(arguments: list[str], part: str, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["estimate", "gym", "gpus=none", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and part in printed.err


def test_rank_of_a_launcher_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["estimate", "gym", "gpus=none"]) == 2
    assert "without a launcher" in capsys.readouterr().err


def test_help_lists_the_options(capsys):
    assert cli.main(["estimate", "--help"]) == 0
    text = capsys.readouterr().out
    assert "price_per_hour" in text and "powerband estimate RECIPE" in text


def test_failing_all_reduces_leave_the_row_of_one_rank(capsys, monkeypatch):
    monkeypatch.setattr(estimating, "cores", lambda: 1)
    from powerband.doctor.check_result import fail
    from powerband.doctor.checks import collectives

    monkeypatch.setattr(collectives, "reduce_row", lambda backend, devices: fail(backend, "rank 1 died", "Look there."))
    assert cli.main(["estimate", *runs.SMALL["cartpole"], *COMMON, "num_workers=0", "ranks=1,2", "seconds=1"]) == 0
    text = capsys.readouterr().out
    assert "skipped: gloo between two ranks could not be measured: rank 1 died. Look there." in text
    row = next(line for line in text.splitlines() if line.strip().startswith("1 "))
    assert "env_steps" in row and int(row.split()[1].replace(",", "")) > 0
