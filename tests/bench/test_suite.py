"""The learning suite: its rows, statistics, table, tasks, queue, and one short row of each library."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import powerband

SUITE = Path(powerband.__file__).parents[2] / "benchmarks" / "suite"


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (SUITE / "envs", SUITE):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(SUITE.parents[1] / "src"))


def test_interquartile_mean_is_that_of_the_middle_half() -> None:
    from aggregate import iqm

    assert iqm([np.array([1.0, 2, 3, 4, 5, 6, 7, 800])]) == pytest.approx(4.5)
    assert iqm([np.array([4.0, 1, 800, 3]), np.array([7.0, 5, 6, 2])]) == pytest.approx(4.5)
    # The weights of the runs are 1/2, 1/4 and 1/4, so the middle half is half of the first run and both others' halves.
    assert iqm([np.array([10.0]), np.array([0.0, 20.0])]) == pytest.approx(10.0)
    # Three runs of weight 1/3: the middle half has all of the second and a quarter of a run on each side.
    assert iqm([np.array([0.0, 6.0, 30.0])]) == pytest.approx((0 * 0.25 + 6 + 30 * 0.25) / 1.5)


def test_peer_normalised_mean_is_one_for_equal_runs_and_its_interval_contains_it() -> None:
    from aggregate import normalized, normalized_iqm

    assert normalized(np.array([-300.0, -100.0]), np.array([-100.0, -200.0, -50.0]), -500.0) == pytest.approx([0.5, 1])
    same = [np.array([3.0, 3.0]), np.array([-7.0, -7.0])]
    assert normalized_iqm(same, same, [0.0, -10.0]) == pytest.approx((1, 1, 1))
    generator = np.random.default_rng(1)
    ours, peers = ([generator.normal(mean, 1, 10) for _ in range(4)] for mean in (9.0, 10.0))
    mean, low, high = normalized_iqm(ours, peers, [0.0] * 4)
    assert low < mean < high and mean == pytest.approx(0.9, abs=0.1) and 0.02 < high - low < 0.3


def test_time_to_a_score_is_that_of_the_median_curve() -> None:
    from aggregate import median_curve, time_to

    curves = [
        [{"env_steps": 10, "cpu_s": 1, "return": 0}, {"env_steps": 20, "cpu_s": 2, "return": top}] for top in (4, 8, 90)
    ]
    seconds, returns = median_curve(curves, np.array([10, 15, 20]))
    assert list(seconds) == [1, 1.5, 2] and list(returns) == [0, 4, 8]
    assert time_to(4, seconds, returns) == (1.5, True)
    assert time_to(9, seconds, returns) == (2, False)


def test_cpu_seconds_of_a_run_exclude_its_evaluations() -> None:
    from powerband_row import read_curve

    line = {"perf/cpu_cores": 1.0, "env_steps": 5}
    lines = [
        line | {"time_s": 10.0, "time/training_s": 10.0},
        line | {"time_s": 14.0, "time/training_s": 11.0, "perf/share/eval": 0.75, "eval/return": 3.0},
        line | {"time_s": 24.0, "time/training_s": 21.0, "perf/cpu_cores": 0.5, "eval/return": 4.0},
    ]
    assert read_curve(lines) == [
        {"env_steps": 5, "cpu_s": 11.0, "train_s": 11.0, "return": 3.0},
        {"env_steps": 5, "cpu_s": 16.0, "train_s": 21.0, "return": 4.0},
    ]


def test_rows_come_by_seed_and_have_their_hyper_parameters() -> None:
    from rows import TASKS, all_rows
    from sb3_row import zoo

    rows = list(all_rows())
    assert [row.seed for row in rows] == sorted(row.seed for row in rows)
    assert len({row.name for row in rows}) == len(rows)
    assert all(zoo()[task.algo][task.name] for task in TASKS if task.zoo)


@pytest.mark.parametrize("algo", ["ppo", "sac", "td3", "dqn"])
def test_every_entry_of_the_zoo_creates_a_model(algo: str) -> None:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("Box2D")
    pytest.importorskip("minatar")
    from rows import TASKS
    from sb3_row import make_model, zoo

    for task in TASKS:
        if task.algo == algo and task.zoo:
            settings = zoo()[algo][task.name] | ({"buffer_size": 1_000} if algo != "ppo" else {})
            model = make_model(task.env_id, algo, 0, settings)
            assert (model.get_vec_normalize_env() is not None) == settings.get("normalize", False)


def test_target_of_camera_reach_is_visible_and_within_reach() -> None:
    import camera_reach
    from gymnasium.utils.env_checker import check_env

    env = camera_reach.CameraReach()
    check_env(env, skip_render_check=True)
    obs, _ = env.reset(seed=3)
    rows, columns = np.nonzero(obs["camera"][..., 1])
    visible_target = np.array([2 * columns.mean() / 35 - 1, 1 - 2 * rows.mean() / 35])
    assert visible_target == pytest.approx(env.target, abs=0.05)
    distance = float(np.linalg.norm(env.target))  # inverse kinematics of two links, then a PD controller
    bend = np.arccos(distance**2 / (2 * camera_reach.LINK**2) - 1)
    wanted = np.array([np.arctan2(env.target[1], env.target[0]) - bend / 2, bend])
    for _ in range(50):
        error = (wanted - env.angles + np.pi) % (2 * np.pi) - np.pi
        _, reward, *_ = env.step(error * 0.8 - env.velocity * 0.08)
    assert reward > -0.05


def test_table_names_what_is_missing(tmp_path: Path) -> None:
    from table import draw, load, table

    def write(system: str, seed: int, score: float, cpu_s: float) -> None:
        curve = [
            {"env_steps": 5_000 * k, "cpu_s": cpu_s * k, "train_s": 0, "return": score * k / 20} for k in range(1, 21)
        ]
        result: dict[str, Any] = {"curve": curve, "final": {"return": score}}
        (tmp_path / f"CartPole-v1-ppo-{system}-{seed}.json").write_text(json.dumps(result))

    for seed in range(2):
        write("powerband", seed, 400.0, 1.0)
        write("sb3", seed, 200.0, 2.0)
    results, missing = load(tmp_path)
    text = table(results, missing, {"CartPole-v1": 20.0})
    assert "400.0 [400.0, 400.0] (2 of 10 seeds)" in text
    assert "| missing | 200.0" in text  # the Zoo's rows
    assert "| 2.11 | 0.25 |" in text  # (400 - 20) / (200 - 20); 200 after 10 of 20 points at half the seconds per point
    assert f"{len(missing)} of {len(missing) + 4} rows have no result yet" in text and "Hopper-v5-ppo" in text
    draw(results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_pause_file_stops_running_rows(tmp_path: Path) -> None:
    from work_queue import WorkQueue, add_options

    def state() -> str:
        return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def becomes(letter: str) -> bool:
        deadline = time.monotonic() + 10
        while state() != letter and time.monotonic() < deadline:
            time.sleep(0.05)
        return state() == letter

    parser = argparse.ArgumentParser()
    add_options(parser)
    queue = WorkQueue(parser.parse_args([f"--pause-file={tmp_path / 'pause'}"]))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    queue.children.add(child)
    thread = threading.Thread(target=queue.watch)
    thread.start()
    (tmp_path / "pause").touch()
    assert becomes("T")
    (tmp_path / "pause").unlink()
    assert becomes("S")
    queue.end()
    thread.join()
    assert child.wait(10) < 0


def check_result(result: dict[str, Any], steps: int) -> None:
    curve = result["curve"]
    assert [point["env_steps"] for point in curve] == [steps // 4 * k for k in range(1, 5)]
    assert all(8 < point["return"] <= 500 for point in curve)
    assert 0 < curve[0]["cpu_s"] < curve[-1]["cpu_s"] and 0 < curve[0]["train_s"] < curve[-1]["train_s"]
    assert result["final"]["episodes"] == 20
    assert result["final"]["return_low"] < result["final"]["return"] < result["final"]["return_high"]


@pytest.mark.slow
def test_a_row_of_powerband_has_its_evaluations_and_a_final_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import powerband_row

    monkeypatch.setattr(powerband_row, "POINTS", 4)
    monkeypatch.setattr(powerband_row, "FINAL_EPISODES", 20)
    settings = ["on_policy.num_envs=4", "on_policy.num_steps=16", "on_policy.minibatches=2", "on_policy.epochs=1"]
    check_result(powerband_row.train_powerband("CartPole-v1", "ppo", 256, 0, settings, tmp_path / "run"), 256)


def test_a_row_of_sb3_has_its_evaluations_and_a_final_score(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3")
    import sb3_row

    monkeypatch.setattr(sb3_row, "POINTS", 4)
    monkeypatch.setattr(sb3_row, "FINAL_EPISODES", 20)
    settings = {"normalize": True, "n_envs": 4, "n_steps": 16, "n_epochs": 1, "clip_range": "lin_0.2"}
    check_result(sb3_row.train_sb3("CartPole-v1", "ppo", 256, 0, settings), 256)
