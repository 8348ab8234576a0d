"""Options of uav: budgets, old names from the guide, and their effect on training and evaluation."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import runs
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.config import stored_config
from powerband.core.errors import ConfigError
from powerband.recipes.uav import RECIPE, comparison
from powerband.recipes.uav.comparison import compared_policies
from powerband.recipes.uav.config import Config
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.evaluation import fly_missions
from powerband.recipes.uav.images import draw_curves
from powerband.recipes.uav.learner import load_other_run
from powerband.recipes.uav.settings import World


def finalized(*arguments: str) -> Config:
    """Returns the finalized configuration of a command line."""
    return configure("uav", list(arguments))[2].config


def test_rollouts_contain_complete_missions():
    guide = finalized("variant=guide")
    assert (guide.on_policy.num_envs, guide.on_policy.num_steps) == (11, 15)
    assert guide.on_policy.split(11 * 15 * 4, 1) == (6, 128), "660 rows: five of 128 and one of 20"
    assert guide.run.env_steps == 1454 * 11 * 15
    paper = finalized("variant=paper")
    assert paper.on_policy.num_envs == 5 and paper.run.env_steps == 1500 * 5 * 15
    assert finalized("--batch_size", "256", "--batch_number", "3").on_policy.num_envs == 13
    assert finalized("n_agents=2", "budget=9").on_policy.num_envs == 32


def test_the_variant_for_a_gpu_differs_from_mappo_in_size_and_time_alone():
    gpu, mappo = finalized("variant=gpu"), finalized("variant=mappo")
    assert gpu.on_policy.num_envs == 512
    sizes = {name: getattr(mappo.on_policy, name) for name in ("num_envs", "minibatch_rows")}
    assert replace(gpu.on_policy, **sizes) == mappo.on_policy
    assert replace(gpu, run=mappo.run, on_policy=mappo.on_policy) == mappo
    assert [each.on_policy.split(each.on_policy.num_envs * 15 * 8, 1)[0] for each in (gpu, mappo)] == [8, 8]


def test_a_batch_that_does_not_fit_into_memory_leads_to_an_option_of_uav():
    whole = finalized("on_policy.num_envs=4", "on_policy.minibatch_rows=0")
    rows = 4 * whole.on_policy.num_steps * whole.world.n_agents
    assert whole.on_policy.split(rows, 1) == (1, rows) and whole.on_policy.split(rows // 2, 2) == (1, rows // 2)
    setting = whole.on_policy.batch_size_setting(30, 1)
    assert finalized("on_policy.num_envs=4", setting).on_policy.split(rows, 1) == (-(-rows // 30), 30)


def test_budgets_in_iterations_and_in_episodes():
    assert finalized("--n_episodes", "1500").run.env_steps == 1500 * 11 * 15
    assert finalized("episodes=100").run.env_steps == 10 * 11 * 15, "ten rollouts of eleven missions"
    with pytest.raises(ConfigError, match="two budgets"):
        finalized("episodes=100", "iterations=5")
    with pytest.raises(ConfigError, match="whole number of missions"):
        finalized("num_steps=20")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("batches=7 on_policy.num_envs=4", "batches=7: no effect with on_policy.num_envs=4"),
        ("variant=fast --batch_number 7", "batches=7: no effect with on_policy.num_envs=32"),
        ("iterations=3 env_steps=700", "env_steps=700: no effect with iterations=3"),
        ("batches=7", ""),
        ("batches=7 on_policy.num_envs=15", ""),  # as finalize stores it in a run
        ("variant=paper iterations=3", ""),
        ("variant=fast algo=iac", ""),
    ],
)
def test_options_without_effect_have_a_notice(arguments, message):
    notices = [each for each in configure("uav", arguments.split())[2].notices if "no effect" in each]
    assert len(notices) == bool(message) and all(each.startswith(message) for each in notices)


def test_the_path_of_the_map_file_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert finalized("map_file=maps/../map.npy").world.map_file == str(tmp_path / "map.npy")
    assert finalized().world.map_file == ""


@pytest.mark.parametrize("argument", ["minibatches=4", "on_policy.normalize_advantage=false"])
def test_options_without_effect_are_refused(argument):
    with pytest.raises(ConfigError, match="coma.normalize_advantage=true"):
        finalized(argument)


def test_a_params_file_of_the_guide_is_read(tmp_path, monkeypatch):
    params = tmp_path / "params.yaml"
    params.write_text(
        "experiment:\n  missions:\n    n_agents: 3\n    n_episodes: 7\n  constraints:\n    budget: 9\n"
        "networks:\n  device: cpu\n  batch_size: 60\n  batch_number: 2\n  data_passes: 4\n"
        "logging:\n  figure_interval: 20\n  histogram_interval: 200\n"
    )
    named = finalized("--config", str(params))
    monkeypatch.setenv("CONFIG_FILE_PATH", str(params))
    config = finalized()
    assert config == named
    assert (config.world.n_agents, config.world.budget, config.run.gpus) == (3, 9, "cpu")
    assert (config.on_policy.minibatch_rows, config.batches, config.on_policy.epochs) == (60, 2, 4)
    assert config.run.env_steps == 7 * 4 * 10
    assert (config.figure_interval, config.histogram_interval) == (20, 200)
    other = tmp_path / "other.yaml"
    other.write_text("networks:\n  batch_number: 5\n")
    assert finalized(f"config={other}") == finalized("--config", str(other)) != config, "an argument replaces it"
    with pytest.raises(ConfigError, match="params.yaml:2"):
        params.write_text("networks:\n  bach_size: 60\n")
        finalized()


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A run of two iterations in fp32."""
    return runs.train("coma", tmp_path_factory.mktemp("runs") / "base", "iterations=2", "precision=fp32")


@pytest.mark.parametrize(
    "argument",
    ["data_passes=1", "batch_size=40", "n_agents=2", "seed=5", "gamma=0.5", "gae_lambda=0.2", "precision=bf16"],
)
def test_options_change_the_learning(argument, base, tmp_path):
    name = argument.split("=")[0]
    others = [each for each in runs.SMALL["coma"] if name != "batch_size" or "minibatch_rows" not in each]
    others += ["precision=fp32"] * (name != "precision")
    run = tmp_path / "changed"
    assert cli.main(["train", *others, *runs.COMMON, f"run_dir={run}", "iterations=2", argument]) == 0
    assert any("learner/actor" in leaf for leaf in runs.differences(base, run)), argument


def test_the_number_of_updates_follows_from_passes_and_mini_batches(tmp_path):
    run = runs.train("coma", tmp_path / "run", "iterations=2", "data_passes=3")
    assert runs.metrics(run)[-1]["grad_steps"] == 2 * 3 * 3, "60 rows in mini-batches of 25, 25 and 10"


def test_backend_switches_are_set_and_logged(tmp_path):
    cudnn = torch.backends.cudnn
    runs.train("coma", tmp_path / "on", "iterations=1", "detect_anomaly=true", "cudnn_deterministic=true", "tf32=false")
    try:
        assert torch.is_anomaly_enabled() and cudnn.deterministic and not cudnn.benchmark and not cudnn.allow_tf32
        assert "anomaly detection on" in (tmp_path / "on" / "train.log").read_text()
    finally:
        runs.train("coma", tmp_path / "off", "iterations=1")
    assert not torch.is_anomaly_enabled() and cudnn.benchmark and not cudnn.deterministic and cudnn.allow_tf32


@pytest.mark.slow
def test_figures_and_histograms_do_not_change_the_training(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    intervals = ["figure_interval=2", "histogram_interval=3", "iterations=6"]
    run = runs.train("coma", tmp_path / "run", *intervals)
    events = EventAccumulator(str(run / "figures"), size_guidance={"images": 0, "histograms": 0}).Reload()
    assert events.Tags()["images"] == ["mission"]
    steps = [event.step for event in events.Images("mission")]
    assert set(steps) <= {30, 60, 90} and steps, "the environment steps after rollouts 2, 4 and 6, of 15 steps each"
    assert {event.step for event in events.Histograms("actor/output.weight")} <= {45, 90}
    plain = runs.train("coma", tmp_path / "plain", "iterations=6")
    assert not (plain / "figures").exists()
    assert not [leaf for leaf in runs.differences(run, plain) if "learner" in leaf]


def test_an_evaluation_compares_planners_and_team_sizes(base, capsys):
    capsys.readouterr()
    options = ["missions=3", "planners=random,greedy", "n_agents=2,5", "comm_range_m=0,100", "--json"]
    assert cli.main(["eval", str(base), *options]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 3 * 2 * 2
    assert {row["n_agents"] for row in rows} == {2, 5} and {row["comm_range_m"] for row in rows} == {0.0, 100.0}
    for row in rows:
        low, high = row["f1_mean_95"]
        assert low <= row["f1_mean"] <= high
    assert rows[0]["this_run_ahead_f1"][0] == 0.0
    for name in ("eval-curves.png", "mission.png", "videos/mission.mp4"):
        assert (base / name).stat().st_size > 5_000


def test_media_show_the_first_evaluated_setting_and_the_table_is_json(base, tmp_path, monkeypatch):
    run = shutil.copytree(base, tmp_path / "run")
    titles, worlds = [], []

    def draw(metrics, title=""):
        titles.append(title)
        return draw_curves(metrics, title)

    def fail(learner, world, *rest):
        worlds.append(world)
        raise RuntimeError("no film")

    monkeypatch.setattr(comparison, "draw_curves", draw)
    monkeypatch.setattr(comparison, "film_mission", fail)
    with pytest.raises(RuntimeError, match="no film"):
        cli.main(["eval", str(run), "episodes=1", "policies=none", "n_agents=2,3", "comm_range_m=inf,15"])
    assert titles == ["2 UAVs, communication range inf m"]
    assert comparison._title(World(failure_rate=0.5)) == "4 UAVs, communication range 25 m, 50% of the messages lost"
    assert [(world.n_agents, world.comm_range_m) for world in worlds] == [(2, float("inf"))]
    text = (run / "eval-missions.json").read_text()
    stored = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert stored["options"]["comm_range_m"] == ["inf", 15.0]
    assert [row["comm_range_m"] for row in stored["rows"]] == ["inf", 15.0, "inf", 15.0]
    assert stored["rows"][0]["f1_mean_95"] == [None, None] and stored["rows"][0]["this_run_ahead_f1"][0] == 0.0


def test_runs_with_the_same_last_folder_have_a_row_each(base, tmp_path):
    other = shutil.copytree(base, tmp_path / base.name)
    names = (str(base), str(other))
    assert tuple(compared_policies(names, stored_config(base, Config).world)) == names


def test_an_evaluation_keeps_the_random_ranges_of_its_run(base, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(base, run)
    stored = json.loads((run / "config.json").read_text())
    stored["world"]["random_comm_range"] = True
    (run / "config.json").write_text(json.dumps(stored))
    means = {}
    for comm_range in ("", "25"):
        capsys.readouterr()
        options = ["missions=8", "policies=none", f"comm_range_m={comm_range}", "video=false", "--json"]
        assert cli.main(["eval", str(run), *options]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        means[row["comm_range_m"]] = row["f1_mean"], row["return"]
    assert means["random"] != means[25.0]


def test_old_names_lead_to_options_that_exist():
    for old, new in RECIPE.old_names.items():
        name = new if isinstance(new, str) else new[0]
        value = RECIPE.Config()
        for part in name.split("."):
            value = getattr(value, part)
        assert name not in RECIPE.old_names, old


def test_another_run_with_old_option_names_is_loaded(tmp_path):
    run_dir = runs.train("coma", tmp_path / "run", "env_steps=12")
    file = run_dir / "config.json"
    stored = json.loads(file.read_text())
    width = stored["coma"]["width"]
    stored["networks"] = {"lambda": stored["on_policy"].pop("gae_lambda")}
    file.write_text(json.dumps(stored))
    learner, _ = load_other_run(run_dir, Config().world)
    assert learner.config.width == width


def test_another_run_keeps_its_observations(base, tmp_path, capsys):
    """A run is compared with itself: with the observations of its training, both fly the same missions equally."""
    other = tmp_path / "other"
    shutil.copytree(base, other)
    world = replace(stored_config(base, Config).world, centred_maps=True)
    assert load_other_run(other, world)[1].centred_maps is False
    with pytest.raises(ConfigError, match="altitudes_m=5,10,15, and this run with 5,10"):
        load_other_run(other, replace(world, altitudes_m=(5.0, 10.0), sensor_noise=(0.01, 0.265)))
    acts = {
        centred: compared_policies((str(other),), replace(world, centred_maps=centred)) for centred in (True, False)
    }
    curves = [
        fly_missions(UavEnv(2, observed, seed=7), act, 7)["f1"]
        for ((act, observed),) in (each.values() for each in acts.values())
    ]
    assert torch.equal(*curves)
