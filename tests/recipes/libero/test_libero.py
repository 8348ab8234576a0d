"""The recipe libero: learned from recordings through the command line; demonstrated and evaluated in the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import runs
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.cli.run_commands import configure_evaluation
from powerband.core.config import RunConfig
from powerband.recipes.libero import evaluation
from powerband.recipes.libero import train as libero_train
from powerband.recipes.libero.config import Config, launched_precision
from powerband.recipes.libero.evaluation import ChunkActor
from powerband.recipes.libero.nets.rdt_checkpoint import read_weights
from recipes.libero.demonstrations import TASKS, record

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")

HORIZON = 4
SMOKE = ["libero", "variant=smoke", *runs.COMMON]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "demos")


def train(run_dir: Path, recorded: Path, *words: str) -> Path:
    said = [word.partition("=")[0] for word in words]
    own = [word for word in SMOKE if word.partition("=")[0] not in said]
    assert cli.main(["train", *own, f"demos_dir={recorded}", f"run_dir={run_dir}", *words]) == 0
    return run_dir


def refused(capsys: pytest.CaptureFixture, *words: str) -> str:
    """What the command line says where it does not train."""
    capsys.readouterr()
    assert cli.main(["train", "libero", *words]) == 2
    return capsys.readouterr().err


def losses(run_dir: Path) -> list[float]:
    return [line["losses/rdt"] for line in runs.metrics(run_dir) if "losses/rdt" in line]


def test_training_resumes_bit_by_bit_in_the_middle_of_an_epoch(recorded: Path, tmp_path: Path) -> None:
    late = "log_interval_s=1000"  # what is added up since the last line is part of the state
    whole = train(tmp_path / "whole", recorded, "updates=5", late)
    half = train(tmp_path / "half", recorded, "updates=2", late)
    assert cli.main(["train", "libero", f"resume={half}", "updates=5"]) == 0, "updates in total"
    assert runs.differences(whole, half) == []
    assert runs.state(whole)["shared/run/grad_steps"] == 5


def test_the_banner_and_the_statistics_say_what_is_used(recorded: Path, tmp_path: Path, capsys) -> None:
    run = train(tmp_path / "run", recorded, "updates=2", "rdt.gradient_accumulation_steps=2", "demo_episodes=0")
    said = capsys.readouterr().out
    assert "2 rows x 1 rank(s) x 2 part(s) accumulated = 4" in said and "train_batch_size=2" in said
    assert "libero_90, 17 dimensions over 30 rows" in said
    kept = json.loads((run / "statistics.json").read_text())
    exported = json.loads((run / "policy" / "config.json").read_text())
    assert kept["state"]["task_set"] == "libero_90" and kept["action"]["count"] == 30
    assert exported["rdt"]["gradient_accumulation_steps"] == 2


def test_a_resume_with_other_demonstrations_is_refused(recorded: Path, tmp_path: Path, capsys) -> None:
    run = train(tmp_path / "run", recorded, "updates=1")
    other = record(tmp_path / "other", {"open": TASKS["open"]})
    said = refused(capsys, f"resume={run}", f"demos_dir={other}", "env_steps=20")
    assert "statistics of libero_single_task, those of libero_90" in said


def test_units_of_states_and_actions_change_and_cannot_change_later(recorded: Path, tmp_path: Path, capsys) -> None:
    found = {}
    for units in ("none", "quantile"):
        run = train(tmp_path / units, recorded, "updates=1", f"statistics={units}")
        found[units] = load_file(next((run / "policy").glob("*.safetensors")))
        kept = json.loads((run / "statistics.json").read_text())
        assert kept["units"] == units
    assert not found["none"]["state_mean"].any() and (found["none"]["action_std"] == 1).all()
    low, high = (kept["state"][name][0] for name in ("q01", "q99"))  # of the first joint, slot 0
    mean, std = (float(found["quantile"][f"state_{name}"][0]) for name in ("mean", "std"))
    assert (mean - std, mean + std) == pytest.approx((low, high), abs=1e-5)
    assert "statistics=none differs from statistics=quantile" in refused(
        capsys, f"resume={tmp_path / 'quantile'}", "statistics=none", "env_steps=20"
    )


def test_one_instruction_for_two_tasks_is_said(tmp_path: Path, capsys) -> None:
    same = record(tmp_path / "demos", {"open": "open it", "close": "open it"})
    train(tmp_path / "run", same, "updates=1")
    message = capsys.readouterr().out
    assert "Two tasks have the same instruction" in message and "data=PATH" in message
    train(tmp_path / "one", same, "updates=1", f"data={same / 'open'}")
    assert "Two tasks have the same instruction" not in capsys.readouterr().out


def test_demonstrations_of_other_tasks_are_said_and_not_evaluated(recorded: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("libero", reason="LIBERO is not installed")
    train(tmp_path / "run", recorded, "updates=1")
    told = (
        "shows the task 'close the top drawer of the cabinet' of libero_90; "
        "the demonstrations show 'close the drawer' and 1 more"
    )
    assert told in capsys.readouterr().out
    own = record(tmp_path / "own", {"drawer": "close the top drawer of the cabinet", **TASKS})
    train(tmp_path / "known", own, "updates=1")
    assert "shows the task" not in capsys.readouterr().out
    words = [*SMOKE[1:], f"demos_dir={recorded}", f"run_dir={tmp_path / 'no'}"]
    assert told in refused(capsys, *words, "eval_episodes=2", "eval_interval=4")
    assert "tasks=99" in refused(capsys, *words, "tasks=99")


def test_proprioception_alone_reads_no_pictures(recorded: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", recorded, "use_images=false", "updates=2")
    assert not any("vision" in name for name in runs.state(run))
    assert "rdt" in " ".join(runs.metrics(run)[-1])


def test_keyframes_are_learned_from_recorded_actions_and_resumes_repeat_the_bits(
    recorded: Path, tmp_path: Path
) -> None:
    words = ["rdt.keyframe_coef=0.5", "log_interval_s=1000"]
    whole = train(tmp_path / "whole", recorded, "updates=3", *words)
    half = train(tmp_path / "half", recorded, "updates=2", *words)
    assert cli.main(["train", "libero", f"resume={half}", "updates=3"]) == 0
    assert runs.differences(whole, half) == []
    assert any(line.get("losses/keyframe", 0) > 0 for line in runs.metrics(whole))
    weights = load_file(next((whole / "policy").glob("*.safetensors")))
    assert any(name.startswith("keyframe.") for name in weights)


class TestWords:
    def test_train_batch_size_is_of_each_rank_and_accumulation_adds_to_it(self, recorded, tmp_path, capsys) -> None:
        words = ["--train_batch_size", "3", "--gradient_accumulation_steps", "2"]
        run = train(tmp_path / "run", recorded, *words, "updates=2")
        said = capsys.readouterr()
        assert "3 rows x 1 rank(s) x 2 part(s) accumulated = 6" in said.out and "each rank" in said.err
        assert runs.state(run)["shared/run/env_steps"] == 12

    def test_mixed_precision_changes_the_losses(self, recorded, tmp_path) -> None:
        words = [
            "updates=4",
            "log_interval=4",
            "rdt.lr_warmup_updates=0",
            "rdt.lr=3e-3",
        ]  # at first the head says 0 in both
        plain = train(tmp_path / "fp32", recorded, *words)
        mixed = train(tmp_path / "bf16", recorded, *words, "--mixed_precision", "bf16")
        assert losses(plain) != losses(mixed)
        assert losses(plain) == pytest.approx(losses(mixed), rel=0.05)

    def test_checkpointing_period_saves(self, recorded, tmp_path) -> None:
        run = train(tmp_path / "run", recorded, "updates=4", "--checkpointing_period", "2", "keep_checkpoints=9")
        checkpoints = [path for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
        assert sorted(int(path.name) for path in checkpoints) == [8, 16]
        averaged = [read_weights(path / "ema") for path in checkpoints]
        assert any(not torch.equal(averaged[0][name], value) for name, value in averaged[1].items())
        state = runs.state(run)
        for name, value in read_weights(run / "checkpoints" / "16" / "ema").items():
            torch.testing.assert_close(value, state[f"shared/learner/acting/{name}"], rtol=0, atol=0)
        call = configure_evaluation(["--pretrained", str(run / "checkpoints" / "8" / "ema" / "model.safetensors")])
        assert call is not None and call.folder == run / "checkpoints" / "8"

    def test_checkpointing_period_replaces_the_saved_interval_of_a_resumed_run(self, recorded, tmp_path) -> None:
        run = train(tmp_path / "run", recorded, "updates=2", "--checkpointing_period", "2")
        words = ["--checkpointing_period", "3", "--resume_from_checkpoint", str(run)]
        assert configure("libero", words)[2].config.run.save_interval == 3 * 4

    @pytest.mark.slow
    def test_sample_batch_size_is_what_chunks_are_drawn_for(self, recorded, tmp_path) -> None:
        drawn = []
        for count in (1, 3):
            words = ["updates=1", "eval_interval=4", "--sample_batch_size", str(count)]
            run = train(tmp_path / str(count), recorded, *words)
            drawn.append([line["eval/sample_mse"] for line in runs.metrics(run) if "eval/sample_mse" in line][-1])
        assert drawn[0] != drawn[1] and min(drawn) > 0

    def test_loader_threads_make_the_same_batches(self, recorded, tmp_path) -> None:
        alone = train(tmp_path / "0", recorded, "updates=3")
        ahead = train(tmp_path / "2", recorded, "updates=3", "--dataloader_num_workers", "2")
        assert runs.differences(alone, ahead) == []

    def test_learning_rate_and_warm_up(self, recorded, tmp_path) -> None:
        slow = train(tmp_path / "slow", recorded, "updates=2")
        fast = train(tmp_path / "fast", recorded, "updates=2", "--learning_rate", "1e-3", "--lr_warmup_steps", "0")
        assert any("learner/policy" in name for name in runs.differences(slow, fast))

    @pytest.mark.parametrize("words", [["--dataset_type", "finetune"]])
    def test_words_that_belong_elsewhere_are_refused(self, words, tmp_path, capsys) -> None:
        said = refused(capsys, *SMOKE[1:], f"run_dir={tmp_path / 'r'}", *words)
        assert words[0].lstrip("-") in said and ("Write" in said or "Name" in said)

    def test_a_published_checkpoint_is_begun_with(self, recorded, tmp_path, capsys) -> None:
        from powerband.recipes.libero.learners import build_policy
        from powerband.recipes.libero.nets.rdt_checkpoint import export_published

        config = configure("libero", ["variant=smoke"])[2].config
        torch.manual_seed(5)
        there = build_policy(config, 128, None)
        export_published(there, tmp_path / "published")
        run = train(
            tmp_path / "run",
            recorded,
            "updates=1",
            "rdt.lr=1e-30",
            "rdt.weight_decay=0",
            f"pretrained={tmp_path / 'published'}",
        )
        kept = runs.state(run)["shared/learner/policy/model.blocks.0.ffn.fc1.weight"]
        assert torch.equal(kept, there.model.blocks[0].ffn.fc1.weight)
        own = [*SMOKE[1:], f"demos_dir={recorded}", f"run_dir={tmp_path / 'other'}", "rdt.horizon=8"]
        assert "rdt.horizon=4" in refused(capsys, *own, f"pretrained={tmp_path / 'published'}")


def test_the_precision_of_accelerate_launch_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    resolved = configure("libero", ["variant=smoke"])[2]
    assert resolved.config.run.precision == "bf16" and "accelerate launch" in resolved.notices[-1]
    assert configure("libero", ["variant=smoke", "precision=fp16"])[2].config.run.precision == "fp16"
    assert launched_precision(Config(run=RunConfig(precision="auto"))) == "bf16"
    assert launched_precision(Config(run=RunConfig(resume="last"))) == "", "a resume keeps what the run computes in"


def test_a_plugin_that_shards_weights_in_an_older_way_is_refused(recorded, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert "FSDP 1" in refused(capsys, *SMOKE[1:], f"demos_dir={recorded}", f"run_dir={tmp_path / 'r'}")


class TestRefused:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["demos_dir=nowhere", "record_missing=false"], "powerband train libero demos"),
            (["text_encoder=nowhere"], "t5-v1_1-xxl"),
            (["vision_encoder=nowhere"], "siglip-so400m"),
            (["rdt.gradient_accumulation_steps=3"], "does not divide the 4 rows"),
            (["pixels=40"], "multiple of the 16 pixels"),
            (["benchmark=libero_spacial"], "libero_spatial"),
            (["rdt.keyframe_coef=0.5", "vision_encoder=siglip"], "Write rdt.keyframe_coef=0, or leave vision_encoder"),
        ],
    )
    def test_with_what_to_do(self, words, said, recorded, tmp_path, capsys) -> None:
        own = [f"demos_dir={recorded}"] if not words[0].startswith("demos_dir") else []
        assert said in refused(capsys, *SMOKE[1:], *own, f"run_dir={tmp_path / 'r'}", *words)


class Told:
    """A learner that keeps what it was shown and always does one thing."""

    device = torch.device("cpu")

    def __init__(self, chunk: torch.Tensor) -> None:
        self.chunk, self.shown = chunk, []
        self.acting = type("Acting", (), {"state_mask": torch.ones(128, dtype=torch.bool)})

    def act(self, obs, carry, explore):
        self.shown.append(obs)
        return self.chunk.expand(len(obs["state"]), -1, -1), {}, None


def test_an_actor_shows_what_was_recorded_and_takes_the_first_actions() -> None:
    from powerband.data.robot.unified_vector import action_vector, gripper_opening, state_vector

    actions = torch.rand(6, 7) * 2 - 1
    learner = Told(action_vector(actions))
    obs = {
        "joints": torch.rand(2, 7),
        "gripper": torch.tensor([[0.04, -0.04], [0.0, 0.0]]),
        "eef_pos": torch.rand(2, 3),
        "eef_quat": torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(2, 1),
        "step_count": torch.tensor([[0.0], [5.0]]),
        "images": torch.randint(256, (2, 3, 2, 16, 16, 3), dtype=torch.uint8),
    }
    taken, _ = ChunkActor(learner, 1, 4)(obs, None)
    torch.testing.assert_close(taken, actions[:4].expand(2, 4, 7), atol=1e-5, rtol=0)
    shown = learner.shown[0]
    assert shown["image_mask"].tolist() == [[[False] * 2] * 2 + [[True] * 2], [[True] * 2] * 3]
    assert shown["task"].tolist() == [1, 1] and torch.equal(shown["images"], obs["images"])
    wanted = state_vector(obs["joints"], gripper_opening(obs["gripper"]), obs["eef_pos"], obs["eef_quat"])
    assert torch.equal(shown["state"], wanted) and wanted[:, 10].tolist() == [1.0, 0.0]
    ChunkActor(learner, 1, 4, cameras=("wrist",))(obs, None)
    assert learner.shown[1]["image_mask"].tolist() == [[[False] * 2] * 2 + [[False, True]], [[False, True]] * 3]


def test_an_evaluation_seeds_the_noise_of_each_row_and_shows_what_was_recorded(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path / "run", recorded, "updates=1")
    stored = json.loads((run / "statistics.json").read_text())
    assert stored["hz"] == 20 and stored["cameras"] == ["agentview", "wrist"]
    (run / "statistics.json").write_text(json.dumps({**stored, "hz": 10, "cameras": ["wrist"]}))
    drawn, views = [], []

    def play(config, task, policy, *_: object, **__: object) -> dict:
        drawn.append(policy.learner.noise("rdt/sample", 2).normal(3))
        views.append((policy.hz, policy.camera_mask.tolist()))
        numbers = ("success", "success_low", "success_high", "steps", "episodes", "episodes_per_hour")
        return {"task": task.name, **dict.fromkeys(numbers, 0)}

    monkeypatch.setattr(evaluation, "evaluate_task", play)
    config = configure("libero", ["variant=smoke"])[2].config
    for seed in (1, 2):
        options = evaluation.Evaluation(seed=seed, video=False, benchmark="libero_90", tasks=("0", "1"))
        evaluation.evaluate_run(config, run, options)
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[2], drawn[3])
    assert not torch.equal(drawn[0], drawn[2]) and views == 4 * [(10.0, [False, True])]
    (run / "statistics.json").write_text(json.dumps({"units": "zscore"}))
    assert evaluation.demonstrated_view(run) == (20, ("agentview", "wrist")), "a run of an older version"


def test_evaluations_during_training_leave_the_published_states_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def play(config, task, policy, exec_horizon, options) -> dict:
        asked.append(options)
        return {"success": 0.5}

    monkeypatch.setattr(libero_train, "evaluate_task", play)
    config = configure("libero", ["variant=smoke", "eval_episodes=3"])[2].config
    during = libero_train.TrainingEvaluation.__new__(libero_train.TrainingEvaluation)
    instructions = [task.instruction for task in config.selected_tasks()]
    episodes = SimpleNamespace(instructions=instructions, hz=20.0, cameras=("agentview", "wrist"))
    during.config, during.learner = config, None
    during.data = SimpleNamespace(episodes=episodes, vision=None)
    assert during._success() == 0.5
    assert {(each.starts, each.episodes) for each in asked} == {("drawn", 3)}
    assert asked[0].seed != evaluation.Evaluation().seed


def test_quality_is_of_demonstrations_and_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulators that are asked for; what the word does to frames is in tests/recipes/libero/env/test_view.py."""
    from powerband.recipes.libero import demos as libero_demos
    from powerband.recipes.libero.evaluation import Evaluation, env_kwargs

    config = configure("libero", ["variant=smoke", "quality=plain"])[2].config
    task = config.selected_tasks()[0]
    assert env_kwargs(config, task, 2, Evaluation())["quality"] == "plain"
    assert env_kwargs(config, task, 2, Evaluation(quality="full"))["quality"] == "full"

    class Asked(Exception):
        pass

    def asked(rows, *_, **__):
        raise Asked([row["quality"] for row in rows])

    monkeypatch.setattr(libero_demos, "make_libero_vec_env", asked)
    monkeypatch.setattr(libero_demos, "task_script", lambda task: ((), ()))
    with pytest.raises(Asked, match="plain"):
        libero_demos.record(config, task, tmp_path)


@pytest.mark.slow
def test_the_whole_way_in_the_simulator(tmp_path: Path, capsys) -> None:
    pytest.importorskip("libero", reason="LIBERO is not installed")
    demos = tmp_path / "demos"
    words = [
        "demos",
        "demo_episodes=1",
        "num_workers=0",
        "max_steps=250",
        "quality=plain",
        f"demos_dir={demos}",
        f"run_dir={tmp_path / 'recorded'}",
    ]
    assert cli.main(["train", "libero", words[0], *SMOKE[1:], *words[1:]]) == 0
    manifest = json.loads(next(demos.glob("*/manifest.json")).read_text())
    assert manifest["facts"]["instruction"] == "close the top drawer of the cabinet" and manifest["rows"] > 20
    run = train(tmp_path / "run", demos, "quality=plain")  # simplified meshes are tested beside their environment
    told = ["--benchmark", "libero_90", "--num_tasks", "1", "--max_steps", "6", "--exec_horizon", "3", "--record_video"]
    films = ["--video_output_dir", str(tmp_path / "films"), "episodes=2", "policies=policy,random", "num_workers=1"]
    assert cli.main(["eval", str(run), *told, *films]) == 0
    rows = json.loads((run / "eval-libero.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["policy", "random"] and all(row["steps"] == 6 for row in rows)
    assert list((tmp_path / "films").iterdir()), "no film was written"
    export = ["train", "libero", "export", *SMOKE[1:], f"demos_dir={demos}", f"run_dir={tmp_path / 'exported'}"]
    assert cli.main(export) == 0
    assert (tmp_path / "exported" / "lerobot" / "meta" / "info.json").exists()
