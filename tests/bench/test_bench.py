"""The benchmarks through the real command line, on settings of a second; what they refuse, and their arithmetic."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from powerband import catalogue, cli
from powerband.bench.harness import interleaved, options
from powerband.bench.knobs import Options
from powerband.bench.peers import Options as PeerOptions
from powerband.bench.peers import _words
from powerband.bench.plot import save_plot

TINY = "gym sac.hidden=16 global_batch_size=16 warmup=20 random_steps=0 num_workers=0 threads=1".split()
ONCE = "seconds=0.6 rounds=1".split()


@pytest.mark.slow
def test_scaling_measures_ranks_of_the_real_loop(tmp_path: Path, capsys) -> None:
    target = tmp_path / "scaling.json"
    plot = tmp_path / "scaling.png"
    words = [*TINY, *ONCE, "values=1,2", f"plot={plot}", "--json", str(target)]
    assert cli.main(["bench", "scaling", *words]) == 0
    found = json.loads(target.read_text())
    one, two = found["rows"]
    assert (one["ranks"], two["ranks"]) == (1, 2) and one["efficiency"] == 1.0
    assert two["efficiency"] == pytest.approx(two["steps_per_s"] / one["steps_per_s"] / 2)
    for row in (one, two):
        (once,) = row["rounds"]
        assert once["seconds"] >= 0.5 and once["updates_per_s"] == pytest.approx(once["steps_per_s"], rel=0.3)
        assert sum(once["shares"].values()) == pytest.approx(1, abs=0.02)
    assert found["host"]["cores"] >= 1 and found["words"] == TINY
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "2 ranks" in capsys.readouterr().out


def test_a_knob_is_turned_around_what_the_recipe_has(capsys) -> None:
    assert cli.main(["bench", "batch", *TINY, *ONCE, "--values", "8,16", "--json"]) == 2
    assert "global_batch_size was given already" in capsys.readouterr().err
    words = [word for word in TINY if "batch" not in word]
    assert cli.main(["bench", "batch", *words, *ONCE, "--values", "8", "--json"]) == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)["rows"]
    assert row["off_policy.global_batch_size"] == "8" and row["updates_per_s"] > 0
    assert "steps/s" in printed.err, "the table is beside the JSON, not in it"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["batch", "gym", "algo=ppo"], ["global_batch_size has no effect with algo=ppo"]),
        (["num-envs", "gmy"], ["'gmy'", "Did you mean gym"]),
        (["num-envs", "gym", "values=0"], ["num_envs"]),
        (["num-envs", "gym", "rounds=0"], ["rounds=1 or more"]),
        (["precision", "gym", "values=fp8"], ["fp8", "bf16"]),
        (["scaling", "gym", "values=3"], ["num_envs=4", "3"]),
        (["peers", "algos=td3"], ["algos=sac"]),
        (["peers", "gym"], ["'gym' means nothing to peers"]),
        (["num-envs", "gym", "env_id=Nothing-v0", "values=1"], ["Nothing-v0"]),
    ],
)
def test_what_cannot_be_measured_is_said(words: list[str], parts: list[str], capsys) -> None:
    assert cli.main(["bench", *words]) == 2
    said = capsys.readouterr().err
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("bench", ["num-envs", "scaling", "peers", "update-interval"])
def test_each_benchmark_has_help(bench: str, capsys) -> None:
    assert cli.main(["bench", bench, "--help"]) == 0
    assert "seconds" in capsys.readouterr().out


def test_what_is_compared_is_interleaved_and_the_median_is_reported() -> None:
    order: list[str] = []
    rates = {"a": iter([1.0, 9.0, 2.0]), "b": iter([4.0, 4.0, 4.0])}

    def once(name: str) -> dict:
        order.append(name)
        return {"steps_per_s": next(rates[name]), "updates_per_s": 1.0}

    said: list[str] = []
    rows = interleaved({name: lambda name=name: once(name) for name in rates}, 3, said.append)
    assert order == ["a", "b"] * 3
    assert [row["steps_per_s"] for row in rows] == [2.0, 4.0] and len(rows[0]["rounds"]) == 3
    assert rows[0]["idle"] is None and len(said) == 6 + 3, "a line a measurement, then the table"


def test_options_are_the_benchmarks_and_the_rest_is_the_recipes() -> None:
    words = ["snakes", "--seconds", "2", "algo=ddpg", "--values=1,2", "--opponent", "random", "rounds=4"]
    config, rest = options(Options, words, "")
    assert (config.seconds, config.values, config.rounds) == (2.0, ("1", "2"), 4)
    assert rest == ["snakes", "algo=ddpg", "--opponent", "random"]


def test_a_plot_that_cannot_be_written_is_refused() -> None:
    rows = [{"case": "a", "steps_per_s": 1.0, "updates_per_s": 1.0, "rounds": [{"steps_per_s": 1.0}]}]
    result = {"bench": "x", "words": [], "rows": rows, "host": {"gpus": [], "cpu": "c", "cores": 1}}
    with pytest.raises(ValueError, match="plot=/proc/none"):
        save_plot(result, Path("/proc/none/x.png"))


def test_both_sides_of_peers_have_the_same_sizes() -> None:
    from powerband.recipes import gym

    words = _words(PeerOptions(), "sac")
    resolved = catalogue.configure(words[0], words[1:])[2].config
    assert isinstance(resolved, gym.Config) and resolved.sac.hidden == (256, 256)
    assert (resolved.off_policy.num_envs, resolved.off_policy.global_batch_size) == (4, 256)
    assert resolved.off_policy.schedule().ratio == 1


@pytest.mark.skipif(importlib.util.find_spec("stable_baselines3") is None, reason="stable_baselines3 is not installed")
@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_the_peer_is_measured_with_one_update_a_transition(algo: str) -> None:
    from powerband.bench import sb3

    words = {"algo": algo, "env_id": "Pendulum-v1", "num_envs": 2, "hidden": [16], "batch": 16, "seconds": 0.5}
    words |= {"threads": 1, "warmup": 20, "num_steps": 16, "epochs": 2, "minibatches": 4}
    found = sb3.train(words)
    ratio = {"sac": 1.0, "ppo": 2 * 4 / (16 * 2)}[algo]
    assert found["seconds"] >= 0.5 and found["updates_per_s"] / found["steps_per_s"] == pytest.approx(ratio, rel=0.05)
