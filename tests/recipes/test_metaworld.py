"""All stages of metaworld on the real simulator, small: what they leave, and that they go on where they ended."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import runs
from powerband import cli
from powerband.data.shards import manifest_of, read_shards
from powerband.envs.metaworld.tasks import TEN

pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")
QUICK = "variant=smoke gpus=none threads=1 tensorboard=false sac.hidden=16".split()


def train(stage: str, *words: str) -> None:
    assert cli.main(["train", "metaworld", stage, *QUICK, *words]) == 0


@pytest.fixture(scope="module")
def piped(tmp_path_factory) -> Path:
    """A project that the pipeline made, in processes of its own, as a user would."""
    project = tmp_path_factory.mktemp("piped")
    words = [*QUICK, f"project={project}", f"run_dir={project / 'pipeline'}"]
    done = subprocess.run([sys.executable, "-m", "powerband", "train", "metaworld", "pipeline", *words], timeout=280)
    assert done.returncode == 0
    return project


def test_the_pipeline_leaves_what_each_stage_is_to_leave(piped):
    for task in ("reach", "drawer-close"):
        rows = read_shards(piped / "experts" / task / "data")
        facts = manifest_of(piped / "experts" / task / "data")["facts"]
        assert facts["task"] == task and facts["teacher"] == "expert"
        assert set(rows) == {"obs", "action", "reward", "next_obs", "start", "mu", "log_std", "q_target"}
        assert len(rows["obs"]) >= 500 and bool(rows["start"][0]) and 0 < float(rows["start"].float().mean()) < 0.1
        goes_on = ~rows["start"][1:]
        assert torch.equal(rows["obs"][1:][goes_on], rows["next_obs"][:-1][goes_on])
        assert bool(torch.isfinite(rows["q_target"]).all()) and float(rows["mu"].abs().max()) <= 1
        online = read_shards(piped / "online" / task / "data")
        assert len(online["obs"]) == 800
    probe = json.loads((piped / "encoder" / "probe.json").read_text())
    assert probe["tasks"] == ["reach", "drawer-close"] and 0 <= probe["probe_random"] <= 1
    assert (piped / "encoder" / "tasks.png").stat().st_size > 1000
    assert "actor.output.weight" in load_file(piped / "collective" / "policy" / "model.safetensors")
    table = json.loads((piped / "evaluation.json").read_text())
    assert [(row["task"], row["policy"]) for row in table] == [
        (task, policy) for task in ("reach", "drawer-close") for policy in ("expert", "collective", "scripted")
    ]
    assert (piped / "students" / "reach" / "policy" / "model.safetensors").exists()
    final = json.loads((piped / "runs" / "student-reach" / "final.json").read_text())
    assert final["episodes"] == 4 and final["env_steps"] == 600


def test_the_pipeline_goes_on_where_it_ended(piped, tmp_path, capfd):
    before = {path: path.stat().st_mtime_ns for path in piped.glob("experts/*/policy/*")}
    (piped / "runs" / "evaluate.done").unlink()
    (piped / "evaluation.json").unlink()
    train("pipeline", f"project={piped}", f"run_dir={tmp_path / 'again'}", "final_episodes=2")
    assert (piped / "evaluation.json").exists()
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert "student-reach is done already" in capfd.readouterr().out


def test_a_student_goes_on_from_the_collective_network(piped, tmp_path):
    words = [f"project={piped}", f"run_dir={tmp_path / 'run'}", "final_episodes=2"]
    train("student_finetune", *words, "student_steps=300", "off_policy.warmup=1000", "random_steps=0")
    known = load_file(piped / "collective" / "policy" / "model.safetensors")
    own = load_file(tmp_path / "run" / "policy" / "model.safetensors")
    assert torch.equal(own["output.weight"], known["actor.output.weight"]), "nothing was learned before warmup"


@pytest.mark.parametrize("stage", ["represent", "distill"])
def test_offline_stages_go_on_bit_for_bit(stage, piped, tmp_path):
    budget = {"represent": 64 * 30, "distill": 64 * 150}[stage]
    words = [f"project={piped}", "log_interval=640"]
    train(stage, *words, f"run_dir={tmp_path / 'one'}")
    train(stage, *words, f"run_dir={tmp_path / 'two'}", f"env_steps={budget // 2}")
    assert runs.differences(tmp_path / "one", tmp_path / "two")
    resumed = ["train", "metaworld", stage, f"resume={tmp_path / 'two'}", f"env_steps={budget}"]
    assert cli.main(resumed) == 0
    assert runs.differences(tmp_path / "one", tmp_path / "two") == []


def test_a_scripted_teacher_labels_without_values(piped, tmp_path, capfd):
    project = tmp_path / "scripted"
    words = [f"project={project}", "tasks=reach"]
    train("online_distill", *words, "teacher=scripted", "online_steps=600", f"run_dir={tmp_path / 'online'}")
    rows = read_shards(project / "online" / "reach" / "data")
    assert (
        bool(rows["q_target"].isnan().all())
        and manifest_of(project / "online" / "reach" / "data")["facts"]["teacher"] == "scripted"
    )
    train("represent", *words, f"run_dir={tmp_path / 'represent'}")
    capfd.readouterr()
    assert cli.main(["train", "metaworld", "distill", *QUICK, *words, f"run_dir={tmp_path / 'distill'}"]) == 0
    assert "critics learn from none of the rows" in capfd.readouterr().out


def test_eval_scores_and_films_a_run(piped, tmp_path, capfd):
    assert cli.main(["eval", str(piped / "runs" / "expert-reach"), "episodes=2", "size=64"]) == 0
    folder = piped / "runs" / "expert-reach"
    assert "mean return" in capfd.readouterr().out
    row = json.loads((folder / "evaluation.json").read_text())[0]
    assert row["task"] == "reach" and row["episodes"] == 2 and Path(row["video"]).stat().st_size > 500
    checkpoint = next(path for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    assert cli.main(["eval", str(checkpoint), "episodes=2", "video=false"]) == 0
    again = json.loads((checkpoint / "evaluation.json").read_text())[0]
    assert again["return"] == pytest.approx(row["return"], rel=1e-4)  # the newest one is what was exported
    cut_short = tmp_path / "cut_short"
    shutil.copytree(folder, cut_short, ignore=shutil.ignore_patterns("policy"))
    assert cli.main(["eval", str(cut_short), "episodes=2", "video=false"]) == 0
    assert json.loads((cut_short / "evaluation.json").read_text()) == [again]
    assert f"the policy after {int(checkpoint.name):,} env steps" in capfd.readouterr().out
    assert cli.main(["eval", str(piped / "runs" / "represent")]) == 2


def test_eval_tells_the_ten_tasks_apart_and_plays_the_baselines(tmp_path):
    words = "variant=mt10 env_steps=40 horizon=20 final_episodes=0 sac.hidden=16 off_policy.warmup=20".split()
    words += "random_steps=20 off_policy.global_batch_size=20 replay_size=1000".split()
    words += "gpus=none threads=1 tensorboard=false".split()
    folder = tmp_path / "ten"
    assert cli.main(["train", "metaworld", *words, f"project={tmp_path}", f"run_dir={folder}"]) == 0
    said = ["episodes=2", "policies=policy,random,scripted", "video=false"]
    assert cli.main(["eval", str(folder), *said]) == 0
    rows = json.loads((folder / "evaluation.json").read_text())
    assert [row["task"] for row in rows] == [*TEN] * 3 and all(row["episodes"] == 2 for row in rows)
    assert [row["policy"] for row in rows] == ["expert"] * 10 + ["random"] * 10 + ["scripted"] * 10
    reach = {row["policy"]: row["return"] for row in rows if row["task"] == "reach"}
    assert reach["scripted"] > max(reach["random"], reach["expert"])  # after twenty steps the rule is on its way
    assert len({row["return"] for row in rows[20:]}) == 10


def test_an_expert_ends_once_it_always_succeeds(tmp_path):
    """Every episode is called a success: the run ends after as many as are asked for."""
    from powerband.recipes.metaworld_collect import Collector

    class Ended:
        final_obs, ended = {}, torch.tensor([True, True])

        def __init__(self, wins: list[float]) -> None:
            self.episode = {"success": torch.tensor(wins)}

    class Fake:
        class ranks:  # noqa: N801  stands for an attribute
            world_size = 1

        enough = ""

    from powerband.recipes.metaworld import CollectConfig, Config

    run = Fake()
    collector = Collector(run, Config(stop_after=4, collect=CollectConfig(interval=0)), 2)
    for wins in ([1.0, 1.0], [0.0, 1.0], [1.0, 1.0]):
        collector.after_step(Ended(wins), None)
        assert run.enough == ""
    collector.after_step(Ended([1.0, 0.0]), None)
    collector.after_step(Ended([1.0, 1.0]), None)
    collector.after_step(Ended([1.0, 1.0]), None)
    assert run.enough == "the last 4 episodes all succeeded"
