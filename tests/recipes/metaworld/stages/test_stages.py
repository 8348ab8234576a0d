"""All stages of metaworld with small sizes: their output files, and resume."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import runs
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.config import to_json
from powerband.core.run import stage_sequence
from powerband.data.recorded.shards import read_manifest, read_shards
from powerband.recipes.metaworld.env.tasks import MT10_TASKS

pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")
QUICK = "variant=smoke gpus=none threads=1 tensorboard=false sac.hidden=16".split()


def train(stage: str, *arguments: str) -> None:
    assert cli.main(["train", "metaworld", stage, *QUICK, *arguments]) == 0


def run_here(arguments: list[str], run: Any) -> int:
    """Runs the command of a stage in this process, because each new process imports torch and the simulator."""
    return cli.main(arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A project folder that the pipeline filled; its stages ran in this process."""
    project = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_sequence, "_run_command", run_here)
        train("pipeline", f"project={project}", f"run_dir={project / 'pipeline'}")
    return project


def test_the_pipeline_writes_the_output_of_every_stage(finished):
    for task in ("reach", "drawer-close"):
        rows = read_shards(finished / "experts" / task / "data")
        facts = read_manifest(finished / "experts" / task / "data")["facts"]
        assert facts["task"] == task and facts["teacher"] == "expert"
        assert set(rows) == {"obs", "action", "reward", "next_obs", "start", "mu", "log_std", "q_target"}
        assert len(rows["obs"]) >= 500 and bool(rows["start"][0]) and 0 < float(rows["start"].float().mean()) < 0.1
        goes_on = ~rows["start"][1:]
        assert torch.equal(rows["obs"][1:][goes_on], rows["next_obs"][:-1][goes_on])
        assert bool(torch.isfinite(rows["q_target"]).all()) and float(rows["mu"].abs().max()) <= 1
        online = read_shards(finished / "online" / task / "data")
        assert len(online["obs"]) == 800
    probe = json.loads((finished / "encoder" / "probe.json").read_text())
    assert probe["tasks"] == ["reach", "drawer-close"] and 0 <= probe["probe_random"] <= 1
    assert (finished / "encoder" / "tasks.png").stat().st_size > 1000
    assert "actor.output.weight" in load_file(finished / "collective" / "policy" / "model.safetensors")
    table = json.loads((finished / "evaluation.json").read_text())
    assert [(row["task"], row["policy"]) for row in table] == [
        (task, policy) for task in ("reach", "drawer-close") for policy in ("expert", "collective", "scripted")
    ]
    assert (finished / "students" / "reach" / "policy" / "model.safetensors").exists()
    final = json.loads((finished / "runs" / "student-reach" / "final.json").read_text())
    assert final["episodes"] == 4 and final["env_steps"] == 600


def test_the_pipeline_with_other_tasks_repeats_the_stages_of_several_tasks(tmp_path, monkeypatch):
    """The stages only write the configuration that they would write."""
    started = []

    def start(command: list[str], run: Any) -> int:
        started.append(command[2])
        folder = Path(command[-1].partition("=")[2])
        folder.mkdir()
        (folder / "config.json").write_text(to_json(configure("metaworld", command[2:])[2].config))
        return 0

    monkeypatch.setattr(stage_sequence, "_run_command", start)
    for number, tasks in enumerate(("reach", "reach,drawer-close")):
        train("pipeline", f"project={tmp_path}", f"run_dir={tmp_path / str(number)}", f"tasks={tasks}")
    shared = ["represent", "distill", "evaluate", "student"]
    assert started == ["expert", "online_distill", *shared, "expert", "online_distill", *shared]


def test_an_evaluation_of_no_episodes_ends_with_a_note(tmp_path, capfd):
    train("evaluate", "final_episodes=0", f"project={tmp_path}", f"run_dir={tmp_path / 'run'}")
    assert "final_episodes=0: no policy is evaluated" in capfd.readouterr().out
    assert not (tmp_path / "evaluation.json").exists()


@pytest.mark.slow
def test_the_pipeline_skips_complete_stages(finished, tmp_path, capfd):
    """The stage that is left runs in a process of its own."""
    before = {path: path.stat().st_mtime_ns for path in finished.glob("experts/*/policy/*")}
    (finished / "runs" / "evaluate.done").unlink()
    (finished / "evaluation.json").unlink()
    train("pipeline", f"project={finished}", f"run_dir={tmp_path / 'again'}", "final_episodes=2")
    assert (finished / "evaluation.json").exists()
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert "student-reach is done already" in capfd.readouterr().out


def test_finetuning_starts_from_the_collective_network(finished, tmp_path):
    arguments = [f"project={finished}", f"run_dir={tmp_path / 'run'}", "final_episodes=2"]
    train("student_finetune", *arguments, "student_steps=300", "off_policy.learning_starts=1000", "random_steps=0")
    known = load_file(finished / "collective" / "policy" / "model.safetensors")
    own = load_file(tmp_path / "run" / "policy" / "model.safetensors")
    assert torch.equal(own["output.weight"], known["actor.output.weight"]), "no update before learning_starts"


@pytest.mark.parametrize("stage", ["student", "student_finetune"])
def test_the_collective_policy_guides_a_student_which_a_resume_continues(stage, finished, tmp_path):
    guided = [f"project={finished}", "student.guide_share=0.5", "student.guide_handover=20", "final_episodes=0"]
    train(stage, *guided, f"run_dir={tmp_path / 'run'}", "student_steps=300")
    (left,) = [value for name, value in runs.state(tmp_path / "run").items() if re.search("demonstrations.*left", name)]
    assert left.shape == (2,) and int(left.max()) <= 20
    assert cli.main(["train", "metaworld", stage, f"resume={tmp_path / 'run'}", "student_steps=600"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["env_steps"] == 600


@pytest.mark.parametrize("stage", ["represent", "distill"])
def test_offline_stages_resume_bit_for_bit(stage, finished, tmp_path):
    budget = {"represent": 64 * 30, "distill": 64 * 150}[stage]
    arguments = [f"project={finished}", "log_interval=640"]
    train(stage, *arguments, f"run_dir={tmp_path / 'one'}")
    train(stage, *arguments, f"run_dir={tmp_path / 'two'}", f"env_steps={budget // 2}")
    assert runs.differences(tmp_path / "one", tmp_path / "two")
    resumed = ["train", "metaworld", stage, f"resume={tmp_path / 'two'}", f"env_steps={budget}"]
    assert cli.main(resumed) == 0
    assert runs.differences(tmp_path / "one", tmp_path / "two") == []


def test_labels_of_a_scripted_teacher_have_no_values(finished, tmp_path, capfd):
    project = tmp_path / "scripted"
    arguments = [f"project={project}", "tasks=reach"]
    train("online_distill", *arguments, "teacher=scripted", "online_steps=600", f"run_dir={tmp_path / 'online'}")
    rows = read_shards(project / "online" / "reach" / "data")
    assert (
        bool(rows["q_target"].isnan().all())
        and read_manifest(project / "online" / "reach" / "data")["facts"]["teacher"] == "scripted"
    )
    train("represent", *arguments, f"run_dir={tmp_path / 'represent'}")
    capfd.readouterr()
    assert cli.main(["train", "metaworld", "distill", *QUICK, *arguments, f"run_dir={tmp_path / 'distill'}"]) == 0
    assert "critics learn from none of the rows" in capfd.readouterr().out


def test_eval_evaluates_and_records_a_run(finished, tmp_path, capfd):
    assert cli.main(["eval", str(finished / "runs" / "expert-reach"), "episodes=2", "size=64"]) == 0
    folder = finished / "runs" / "expert-reach"
    assert "mean return" in capfd.readouterr().out
    row = json.loads((folder / "eval-goals.json").read_text())["rows"][0]
    assert row["task"] == "reach" and row["episodes"] == 2 and Path(row["video"]).stat().st_size > 500
    checkpoint = folder / "checkpoints" / str(max(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*")))
    assert cli.main(["eval", str(checkpoint), "episodes=2", "video=false"]) == 0
    again = json.loads((checkpoint / "eval-goals.json").read_text())["rows"][0]
    assert again["return"] == pytest.approx(row["return"], rel=1e-4)  # the newest checkpoint equals the exported policy
    cut_short = tmp_path / "cut_short"
    shutil.copytree(folder, cut_short, ignore=shutil.ignore_patterns("policy"))
    assert cli.main(["eval", str(cut_short), "episodes=2", "video=false"]) == 0
    assert json.loads((cut_short / "eval-goals.json").read_text())["rows"] == [again]
    assert f"evaluating the policy after {int(checkpoint.name):,} env steps" in capfd.readouterr().out
    assert cli.main(["eval", str(finished / "runs" / "represent")]) == 2


@pytest.mark.slow
def test_eval_separates_the_ten_tasks_and_evaluates_the_baselines(tmp_path):
    arguments = (
        "variant=mt10 env_steps=40 horizon=20 final_episodes=0 sac.hidden=16 off_policy.learning_starts=20".split()
    )
    arguments += "random_steps=20 off_policy.global_batch_size=20 replay_size=1000".split()
    arguments += "gpus=none threads=1 tensorboard=false".split()
    folder = tmp_path / "ten"
    assert cli.main(["train", "metaworld", *arguments, f"project={tmp_path}", f"run_dir={folder}"]) == 0
    options = ["episodes=2", "policies=policy,random,scripted", "video=false"]
    assert cli.main(["eval", str(folder), *options]) == 0
    rows = json.loads((folder / "eval-goals.json").read_text())["rows"]
    assert [row["task"] for row in rows] == [*MT10_TASKS] * 3 and all(row["episodes"] == 2 for row in rows)
    assert [row["policy"] for row in rows] == ["expert"] * 10 + ["random"] * 10 + ["scripted"] * 10
    reach = {row["policy"]: row["return"] for row in rows if row["task"] == "reach"}
    assert reach["scripted"] > max(reach["random"], reach["expert"])  # twenty steps suffice to approach the goal
    assert len({row["return"] for row in rows[20:]}) == 10
