"""Tests of the benchmarks through the command line: short measurements, refused options and their arithmetic."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from powerband.bench.harness import _means, _stop, interleaved, options
from powerband.bench.knobs import Options, ScalingOptions
from powerband.bench.peers import Options as PeerOptions
from powerband.bench.peers import _train_arguments
from powerband.bench.plot import save_plot, try_plot
from powerband.cli import catalogue
from powerband.cli import main as cli
from powerband.core.errors import ConfigError

TINY = "gym sac.hidden=16 global_batch_size=16 learning_starts=20 random_steps=0 num_workers=0 threads=1".split()
ONCE = "seconds=0.6 rounds=1".split()


@pytest.mark.slow
def test_scaling_measures_several_ranks(tmp_path: Path, capsys) -> None:
    target = tmp_path / "scaling.json"
    plot = tmp_path / "scaling.png"
    arguments = [*TINY, *ONCE, "values=1,2", f"plot={plot}", "--json", str(target)]
    assert cli.main(["bench", "scaling", *arguments]) == 0
    report = json.loads(target.read_text())
    one, two = report["rows"]
    assert (one["ranks"], two["ranks"]) == (1, 2) and one["efficiency"] == 1.0
    assert two["efficiency"] == pytest.approx(two["steps_per_s"] / one["steps_per_s"] / 2)
    for row in (one, two):
        (metrics,) = row["rounds"]
        assert metrics["seconds"] >= 0.5 and metrics["updates_per_s"] == pytest.approx(metrics["steps_per_s"], rel=0.3)
        assert sum(metrics["shares"].values()) == pytest.approx(1, abs=0.02)
    assert report["host"]["cores"] >= 1 and report["words"] == TINY
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "2 ranks" in capsys.readouterr().out


@pytest.mark.slow
def test_a_setting_of_the_recipe_is_varied(capsys) -> None:
    assert cli.main(["bench", "batch", *TINY, *ONCE, "--values", "8,16", "--json"]) == 2
    assert "global_batch_size was given already" in capsys.readouterr().err
    arguments = [word for word in TINY if "batch" not in word]
    assert cli.main(["bench", "batch", *arguments, *ONCE, "--values", "8", "--json"]) == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)["rows"]
    assert row["off_policy.global_batch_size"] == "8" and row["updates_per_s"] > 0
    assert "steps/s" in printed.err, "the table belongs on stderr, not in the JSON"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["batch", "gym", "algo=ppo"], ["global_batch_size has no effect with algo=ppo"]),
        (["num-envs", "gmy"], ["'gmy'", "Did you mean 'gym'"]),
        (["num-envs", "gym", "values=0"], ["num_envs"]),
        (["num-envs", "gym", "rounds=0"], ["rounds=0", "0 is below 1"]),
        (["precision", "gym", "values=fp8"], ["fp8", "bf16"]),
        (["scaling", "gym", "values=3"], ["num_envs=4", "3"]),
        (["scaling", "gym", "values=two"], ["values=two", "values=1,2,4"]),
        (["update-interval", "seconds=0.2"], ["seconds=0.2", "below 2"]),
        (["peers", "algos=td3"], ["algos=sac"]),
        (["peers", "gym"], ["Unknown option 'gym' of peers"]),
        (["num-envs", "gym", "env_id=Nothing-v0", "values=1"], ["Nothing-v0"]),
    ],
)
def test_invalid_benchmarks_are_refused(arguments: list[str], parts: list[str], capsys) -> None:
    assert cli.main(["bench", *arguments]) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("bench", ["num-envs", "scaling", "peers", "update-interval"])
def test_each_benchmark_has_help(bench: str, capsys) -> None:
    assert cli.main(["bench", bench, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "seconds" in printed and ("\nweak" in printed or "  weak" in printed) == (bench == "scaling")


def test_cases_are_interleaved_and_the_median_is_reported() -> None:
    order: list[str] = []
    rates = {"a": iter([1.0, 9.0, 2.0]), "b": iter([4.0, 4.0, 4.0])}

    def measure(name: str) -> dict:
        order.append(name)
        return {"steps_per_s": next(rates[name]), "updates_per_s": 1.0}

    lines: list[str] = []
    rows = interleaved({name: lambda name=name: measure(name) for name in rates}, 3, lines.append)
    assert order == ["a", "b"] * 3
    assert [row["steps_per_s"] for row in rows] == [2.0, 4.0] and len(rows[0]["rounds"]) == 3
    assert rows[0]["idle"] is None and len(lines) == 6 + 3, "one line per measurement, then the table"


def test_arguments_are_split_between_benchmark_and_recipe() -> None:
    arguments = ["snakes", "--seconds", "2", "algo=ddpg", "--values=1,2", "--opponent", "random", "rounds=4"]
    config, rest = options(Options, arguments, "")
    assert (config.seconds, config.values, config.rounds) == (2.0, ("1", "2"), 4)
    assert rest == ["snakes", "algo=ddpg", "--opponent", "random"]
    arguments = ["snakes", "--weak", "--values", "1", "2", "4", "algo=ddpg", "--overlap", "--rounds", "2"]
    scaling, rest = options(ScalingOptions, arguments, "")
    assert (scaling.weak, scaling.values, scaling.rounds) == (True, ("1", "2", "4"), 2)
    assert rest == ["snakes", "algo=ddpg", "--overlap"]


def test_a_plot_that_cannot_be_written_is_refused(capsys) -> None:
    rows = [{"case": "a", "steps_per_s": 1.0, "updates_per_s": 1.0, "rounds": [{"steps_per_s": 1.0}]}]
    result = {"bench": "x", "words": [], "rows": rows, "host": {"gpus": [], "cpu": "c", "cores": 1}}
    with pytest.raises(ConfigError, match="plot=/proc/none"):
        save_plot(result, Path("/proc/none/x.png"))
    try_plot(lambda: save_plot(result, Path("/proc/none/x.png")), "/proc/none/x.png")  # the result is not lost
    assert "no plot was written: plot=/proc/none/x.png" in capsys.readouterr().err


def test_lines_of_evaluations_do_not_count_in_the_means() -> None:
    window = [{"time_s": float(t), "perf/share/env": share} for t, share in ((0, 0.5), (1, 0.5), (5, 1.0))]
    window.insert(2, {"time_s": 4.0, "eval/return": 1.0})
    assert _means(window) == {"perf/share/env": pytest.approx((0.5 * 1 + 1.0 * 4) / 5)}


def test_a_run_that_has_not_named_its_processes_is_stopped(tmp_path: Path) -> None:
    job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    began = time.monotonic()
    _stop(job, tmp_path)
    assert job.returncode == -signal.SIGTERM and time.monotonic() - began < 30


def test_both_sides_of_peers_have_the_same_sizes() -> None:
    from powerband.recipes.gym.config import Config

    arguments = _train_arguments(PeerOptions(), "sac")
    resolved = catalogue.configure(arguments[0], arguments[1:])[2].config
    assert isinstance(resolved, Config) and resolved.sac.hidden == (256, 256)
    assert (resolved.off_policy.num_envs, resolved.off_policy.global_batch_size) == (4, 256)
    assert resolved.off_policy.schedule().ratio == 1


@pytest.mark.skipif(importlib.util.find_spec("stable_baselines3") is None, reason="stable_baselines3 is not installed")
@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_stable_baselines3_is_measured_at_the_same_update_ratio(algo: str) -> None:
    from powerband.bench import sb3

    sb3_options: dict[str, Any] = {
        "algo": algo,
        "env_id": "Pendulum-v1",
        "num_envs": 2,
        "hidden": [16],
        "batch": 16,
        "seconds": 0.5,
    }
    sb3_options |= {"threads": 1, "learning_starts": 20, "num_steps": 16, "epochs": 2, "minibatches": 4}
    metrics = sb3.train(sb3_options)
    ratio = {"sac": 1.0, "ppo": 2 * 4 / (16 * 2)}[algo]
    assert metrics["seconds"] >= 0.5
    assert metrics["updates_per_s"] / metrics["steps_per_s"] == pytest.approx(ratio, rel=0.05)
