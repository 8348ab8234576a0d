"""The recipe libero on the command line: training on recordings, demonstrations and evaluations in the simulator."""

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
def demos_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "demos")


def train(run_dir: Path, demos_dir: Path, *options: str) -> Path:
    names = [option.partition("=")[0] for option in options]
    defaults = [option for option in SMOKE if option.partition("=")[0] not in names]
    assert cli.main(["train", *defaults, f"demos_dir={demos_dir}", f"run_dir={run_dir}", *options]) == 0
    return run_dir


def error_message(capsys: pytest.CaptureFixture, *options: str) -> str:
    """Returns the error message of a training command that exits with status 2."""
    capsys.readouterr()
    assert cli.main(["train", "libero", *options]) == 2
    return capsys.readouterr().err


def losses(run_dir: Path) -> list[float]:
    return [line["losses/rdt"] for line in runs.metrics(run_dir) if "losses/rdt" in line]


def test_training_resumes_bit_by_bit_in_the_middle_of_an_epoch(demos_dir: Path, tmp_path: Path) -> None:
    rare_logging = "log_interval_s=1000"  # sums since the last log line are part of the state
    uninterrupted = train(tmp_path / "whole", demos_dir, "updates=5", rare_logging)
    resumed = train(tmp_path / "half", demos_dir, "updates=2", rare_logging)
    assert cli.main(["train", "libero", f"resume={resumed}", "updates=5"]) == 0, "updates in total"
    assert runs.differences(uninterrupted, resumed) == []
    assert runs.state(uninterrupted)["shared/run/grad_steps"] == 5


def test_the_banner_states_the_batch_size_and_the_statistics_are_stored(
    demos_dir: Path, tmp_path: Path, capsys
) -> None:
    run = train(tmp_path / "run", demos_dir, "updates=2", "rdt.gradient_accumulation_steps=2", "demo_episodes=0")
    output = capsys.readouterr().out
    assert "2 rows x 1 rank(s) x 2 part(s) accumulated = 4" in output and "train_batch_size=2" in output
    assert "libero_90, 17 dimensions over 30 rows" in output
    statistics = json.loads((run / "statistics.json").read_text())
    policy_config = json.loads((run / "policy" / "config.json").read_text())
    assert statistics["state"]["task_set"] == "libero_90" and statistics["action"]["count"] == 30
    assert policy_config["rdt"]["gradient_accumulation_steps"] == 2


def test_a_resume_with_other_demonstrations_is_refused(demos_dir: Path, tmp_path: Path, capsys) -> None:
    run = train(tmp_path / "run", demos_dir, "updates=1")
    other = record(tmp_path / "other", {"open": TASKS["open"]})
    message = error_message(capsys, f"resume={run}", f"demos_dir={other}", "env_steps=20")
    assert "statistics of libero_single_task, those of libero_90" in message


def test_the_units_of_states_and_actions_are_configurable_and_fixed_in_a_resume(
    demos_dir: Path, tmp_path: Path, capsys
) -> None:
    weights = {}
    for units in ("none", "quantile"):
        run = train(tmp_path / units, demos_dir, "updates=1", f"statistics={units}")
        weights[units] = load_file(next((run / "policy").glob("*.safetensors")))
        statistics = json.loads((run / "statistics.json").read_text())
        assert statistics["units"] == units
    assert not weights["none"]["state_mean"].any() and (weights["none"]["action_std"] == 1).all()
    low, high = (statistics["state"][name][0] for name in ("q01", "q99"))  # of the first joint, slot 0
    mean, std = (float(weights["quantile"][f"state_{name}"][0]) for name in ("mean", "std"))
    assert (mean - std, mean + std) == pytest.approx((low, high), abs=1e-5)
    assert "statistics=none differs from statistics=quantile" in error_message(
        capsys, f"resume={tmp_path / 'quantile'}", "statistics=none", "env_steps=20"
    )


def test_a_notice_reports_two_tasks_with_the_same_instruction(tmp_path: Path, capsys) -> None:
    same_instruction = record(tmp_path / "demos", {"open": "open it", "close": "open it"})
    train(tmp_path / "run", same_instruction, "updates=1")
    message = capsys.readouterr().out
    assert "Two tasks have the same instruction" in message and "data=PATH" in message
    train(tmp_path / "one", same_instruction, "updates=1", f"data={same_instruction / 'open'}")
    assert "Two tasks have the same instruction" not in capsys.readouterr().out


def test_a_notice_reports_demonstrations_of_other_tasks_and_their_evaluation_is_refused(
    demos_dir: Path, tmp_path: Path, capsys
) -> None:
    pytest.importorskip("libero", reason="LIBERO is not installed")
    train(tmp_path / "run", demos_dir, "updates=1")
    notice = (
        "shows the task 'close the top drawer of the cabinet' of libero_90; "
        "the demonstrations show 'close the drawer' and 1 more"
    )
    assert notice in capsys.readouterr().out
    with_evaluated_task = record(tmp_path / "own", {"drawer": "close the top drawer of the cabinet", **TASKS})
    train(tmp_path / "known", with_evaluated_task, "updates=1")
    assert "shows the task" not in capsys.readouterr().out
    options = [*SMOKE[1:], f"demos_dir={demos_dir}", f"run_dir={tmp_path / 'no'}"]
    assert notice in error_message(capsys, *options, "eval_episodes=2", "eval_interval=4")
    assert "tasks=99" in error_message(capsys, *options, "tasks=99")


def test_training_without_images_has_no_image_encoder(demos_dir: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", demos_dir, "use_images=false", "updates=2")
    assert not any("vision" in name for name in runs.state(run))
    assert "rdt" in " ".join(runs.metrics(run)[-1])


def test_keyframes_are_learned_from_recorded_actions_and_resumes_are_exact(demos_dir: Path, tmp_path: Path) -> None:
    options = ["rdt.keyframe_coef=0.5", "log_interval_s=1000"]
    uninterrupted = train(tmp_path / "whole", demos_dir, "updates=3", *options)
    resumed = train(tmp_path / "half", demos_dir, "updates=2", *options)
    assert cli.main(["train", "libero", f"resume={resumed}", "updates=3"]) == 0
    assert runs.differences(uninterrupted, resumed) == []
    assert any(line.get("losses/keyframe", 0) > 0 for line in runs.metrics(uninterrupted))
    weights = load_file(next((uninterrupted / "policy").glob("*.safetensors")))
    assert any(name.startswith("keyframe.") for name in weights)


class TestOptions:
    def test_train_batch_size_counts_rows_per_rank_and_accumulation_multiplies_it(
        self, demos_dir, tmp_path, capsys
    ) -> None:
        options = ["--train_batch_size", "3", "--gradient_accumulation_steps", "2"]
        run = train(tmp_path / "run", demos_dir, *options, "updates=2")
        output = capsys.readouterr()
        assert "3 rows x 1 rank(s) x 2 part(s) accumulated = 6" in output.out and "each rank" in output.err
        assert runs.state(run)["shared/run/env_steps"] == 12

    def test_mixed_precision_changes_the_losses(self, demos_dir, tmp_path) -> None:
        # The output head is zero at first in both precisions, and a small learning rate would hardly change it.
        options = ["updates=4", "log_interval=4", "rdt.lr_warmup_updates=0", "rdt.lr=3e-3"]
        plain = train(tmp_path / "fp32", demos_dir, *options)
        mixed = train(tmp_path / "bf16", demos_dir, *options, "--mixed_precision", "bf16")
        assert losses(plain) != losses(mixed)
        assert losses(plain) == pytest.approx(losses(mixed), rel=0.05)

    def test_checkpointing_period_sets_the_save_interval(self, demos_dir, tmp_path) -> None:
        run = train(tmp_path / "run", demos_dir, "updates=4", "--checkpointing_period", "2", "keep_checkpoints=9")
        checkpoints = [path for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
        assert sorted(int(path.name) for path in checkpoints) == [8, 16]
        averaged = [read_weights(path / "ema") for path in checkpoints]
        assert any(not torch.equal(averaged[0][name], value) for name, value in averaged[1].items())
        state = runs.state(run)
        for name, value in read_weights(run / "checkpoints" / "16" / "ema").items():
            torch.testing.assert_close(value, state[f"shared/learner/acting/{name}"], rtol=0, atol=0)
        call = configure_evaluation(["--pretrained", str(run / "checkpoints" / "8" / "ema" / "model.safetensors")])
        assert call is not None and call.folder == run / "checkpoints" / "8"

    def test_checkpointing_period_replaces_the_saved_interval_of_a_resumed_run(self, demos_dir, tmp_path) -> None:
        run = train(tmp_path / "run", demos_dir, "updates=2", "--checkpointing_period", "2")
        options = ["--checkpointing_period", "3", "--resume_from_checkpoint", str(run)]
        assert configure("libero", options)[2].config.run.save_interval == 3 * 4

    @pytest.mark.slow
    def test_sample_batch_size_sets_the_number_of_sampled_chunks(self, demos_dir, tmp_path) -> None:
        errors = []
        for count in (1, 3):
            options = ["updates=1", "eval_interval=4", "--sample_batch_size", str(count)]
            run = train(tmp_path / str(count), demos_dir, *options)
            errors.append([line["eval/sample_mse"] for line in runs.metrics(run) if "eval/sample_mse" in line][-1])
        assert errors[0] != errors[1] and min(errors) > 0

    def test_loader_threads_do_not_change_the_batches(self, demos_dir, tmp_path) -> None:
        without_threads = train(tmp_path / "0", demos_dir, "updates=3")
        with_threads = train(tmp_path / "2", demos_dir, "updates=3", "--dataloader_num_workers", "2")
        assert runs.differences(without_threads, with_threads) == []

    def test_learning_rate_and_warm_up_change_the_policy(self, demos_dir, tmp_path) -> None:
        slow = train(tmp_path / "slow", demos_dir, "updates=2")
        fast = train(tmp_path / "fast", demos_dir, "updates=2", "--learning_rate", "1e-3", "--lr_warmup_steps", "0")
        assert any("learner/policy" in name for name in runs.differences(slow, fast))

    @pytest.mark.parametrize("options", [["--dataset_type", "finetune"]])
    def test_unsupported_options_are_refused_with_advice(self, options, tmp_path, capsys) -> None:
        message = error_message(capsys, *SMOKE[1:], f"run_dir={tmp_path / 'r'}", *options)
        assert options[0].lstrip("-") in message and ("Write" in message or "Name" in message)

    def test_training_starts_from_a_published_checkpoint(self, demos_dir, tmp_path, capsys) -> None:
        from powerband.recipes.libero.learners import build_policy
        from powerband.recipes.libero.nets.rdt_checkpoint import export_published

        config = configure("libero", ["variant=smoke"])[2].config
        torch.manual_seed(5)
        published_policy = build_policy(config, 128, None)
        export_published(published_policy, tmp_path / "published")
        run = train(
            tmp_path / "run",
            demos_dir,
            "updates=1",
            "rdt.lr=1e-30",
            "rdt.weight_decay=0",
            f"pretrained={tmp_path / 'published'}",
        )
        weight = runs.state(run)["shared/learner/policy/model.blocks.0.ffn.fc1.weight"]
        assert torch.equal(weight, published_policy.model.blocks[0].ffn.fc1.weight)
        options = [*SMOKE[1:], f"demos_dir={demos_dir}", f"run_dir={tmp_path / 'other'}", "rdt.horizon=8"]
        assert "rdt.horizon=4" in error_message(capsys, *options, f"pretrained={tmp_path / 'published'}")
        (tmp_path / "published").rename(tmp_path / "moved")
        assert cli.main(["train", "libero", f"resume={run}", "updates=2"]) == 0, "the checkpoint has all weights"


def test_the_precision_of_accelerate_launch_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    resolved = configure("libero", ["variant=smoke"])[2]
    assert resolved.config.run.precision == "bf16" and "accelerate launch" in resolved.notices[-1]
    assert configure("libero", ["variant=smoke", "precision=fp16"])[2].config.run.precision == "fp16"
    assert launched_precision(Config(run=RunConfig(precision="auto"))) == "bf16"
    assert launched_precision(Config(run=RunConfig(resume="last"))) == "", "a resume keeps what the run computes in"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rdt.objective=regression rdt.sample_steps=8", "rdt.sample_steps=8: no effect with rdt.objective=regression"),
        ("rdt.optimizer=factored rdt.betas=0.8,0.9 rdt.eps=1e-6", "rdt.betas=0.8,0.9, rdt.eps=1e-06: no effect with"),
        ("rdt.objective=regression rdt.optimizer=factored", ""),
        ("rdt.sample_steps=8 rdt.noise_steps=100 rdt.eps=1e-6", ""),
    ],
)
def test_options_of_the_policy_without_effect_are_named(arguments: str, message: str) -> None:
    notices = configure("libero", arguments.split())[2].notices
    assert len(notices) == bool(message) and all(message in each for each in notices)


def test_fsdp_version_1_is_refused(demos_dir, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert "FSDP 1" in error_message(capsys, *SMOKE[1:], f"demos_dir={demos_dir}", f"run_dir={tmp_path / 'r'}")


class TestInvalidOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
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
    def test_an_error_states_the_cause_and_the_fix(self, options, message, demos_dir, tmp_path, capsys) -> None:
        demos_option = [f"demos_dir={demos_dir}"] if not options[0].startswith("demos_dir") else []
        assert message in error_message(capsys, *SMOKE[1:], *demos_option, f"run_dir={tmp_path / 'r'}", *options)


class RecordingLearner:
    """A learner that stores its observations and always returns the same chunk."""

    device = torch.device("cpu")

    def __init__(self, chunk: torch.Tensor) -> None:
        self.chunk, self.observations = chunk, []
        self.acting = type("Acting", (), {"state_mask": torch.ones(128, dtype=torch.bool)})

    def act(self, obs, carry, explore):
        self.observations.append(obs)
        return self.chunk.expand(len(obs["state"]), -1, -1), {}, None


def test_an_actor_converts_observations_and_returns_the_first_actions() -> None:
    from powerband.data.robot.unified_vector import action_vector, gripper_opening, state_vector

    actions = torch.rand(6, 7) * 2 - 1
    learner = RecordingLearner(action_vector(actions))
    obs = {
        "joints": torch.rand(2, 7),
        "gripper": torch.tensor([[0.04, -0.04], [0.0, 0.0]]),
        "eef_pos": torch.rand(2, 3),
        "eef_quat": torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(2, 1),
        "step_count": torch.tensor([[0.0], [5.0]]),
        "images": torch.randint(256, (2, 3, 2, 16, 16, 3), dtype=torch.uint8),
    }
    executed, _ = ChunkActor(learner, 1, 4)(obs, None)
    torch.testing.assert_close(executed, actions[:4].expand(2, 4, 7), atol=1e-5, rtol=0)
    policy_obs = learner.observations[0]
    assert policy_obs["image_mask"].tolist() == [[[False] * 2] * 2 + [[True] * 2], [[True] * 2] * 3]
    assert policy_obs["task"].tolist() == [1, 1] and torch.equal(policy_obs["images"], obs["images"])
    expected_state = state_vector(obs["joints"], gripper_opening(obs["gripper"]), obs["eef_pos"], obs["eef_quat"])
    assert torch.equal(policy_obs["state"], expected_state) and expected_state[:, 10].tolist() == [1.0, 0.0]
    ChunkActor(learner, 1, 4, cameras=("wrist",))(obs, None)
    assert learner.observations[1]["image_mask"].tolist() == [[[False] * 2] * 2 + [[False, True]], [[False, True]] * 3]


def test_an_evaluation_seeds_the_noise_of_each_row_and_uses_the_recorded_frequency_and_cameras(
    demos_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path / "run", demos_dir, "updates=1")
    stored = json.loads((run / "statistics.json").read_text())
    assert stored["hz"] == 20 and stored["cameras"] == ["agentview", "wrist"]
    (run / "statistics.json").write_text(json.dumps({**stored, "hz": 10, "cameras": ["wrist"]}))
    samples, views = [], []

    def play(config, task, policy, *_: object, **__: object) -> dict:
        samples.append(policy.learner.noise("rdt/sample", 2).normal(3))
        views.append((policy.hz, policy.camera_mask.tolist()))
        fields = ("success", "success_low", "success_high", "steps", "episodes", "episodes_per_hour")
        return {"task": task.name, **dict.fromkeys(fields, 0)}

    monkeypatch.setattr(evaluation, "evaluate_task", play)
    config = configure("libero", ["variant=smoke"])[2].config
    for seed in (1, 2):
        options = evaluation.Evaluation(seed=seed, video=False, benchmark="libero_90", tasks=("0", "1"))
        evaluation.evaluate_run(config, run, options)
    assert torch.equal(samples[0], samples[1]) and torch.equal(samples[2], samples[3])
    assert not torch.equal(samples[0], samples[2]) and views == 4 * [(10.0, [False, True])]
    (run / "statistics.json").write_text(json.dumps({"units": "zscore"}))
    assert evaluation.demonstrated_view(run) == (20, ("agentview", "wrist")), "a run of an older version"


def test_evaluations_during_training_do_not_use_the_published_states(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations = []

    def play(config, task, policy, exec_horizon, options) -> dict:
        evaluations.append(options)
        return {"success": 0.5}

    monkeypatch.setattr(libero_train, "evaluate_task", play)
    config = configure("libero", ["variant=smoke", "eval_episodes=3"])[2].config
    training_evaluation = libero_train.TrainingEvaluation.__new__(libero_train.TrainingEvaluation)
    instructions = [task.instruction for task in config.selected_tasks()]
    episodes = SimpleNamespace(instructions=instructions, hz=20.0, cameras=("agentview", "wrist"))
    training_evaluation.config, training_evaluation.learner = config, None
    training_evaluation.data = SimpleNamespace(episodes=episodes, vision=None)
    assert training_evaluation._success() == 0.5
    assert {(each.starts, each.episodes) for each in evaluations} == {("drawn", 3)}
    assert evaluations[0].seed != evaluation.Evaluation().seed


def test_quality_applies_to_demonstrations_and_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulators receive the option. tests/recipes/libero/env/test_view.py tests its effect on frames."""
    from powerband.recipes.libero import demos as libero_demos
    from powerband.recipes.libero.evaluation import Evaluation, env_kwargs

    config = configure("libero", ["variant=smoke", "quality=plain"])[2].config
    task = config.selected_tasks()[0]
    assert env_kwargs(config, task, 2, Evaluation())["quality"] == "plain"
    assert env_kwargs(config, task, 2, Evaluation(quality="full"))["quality"] == "full"

    class RequestedQualities(Exception):
        pass

    def raise_qualities(rows, *_, **__):
        raise RequestedQualities([row["quality"] for row in rows])

    monkeypatch.setattr(libero_demos, "make_libero_vec_env", raise_qualities)
    monkeypatch.setattr(libero_demos, "task_script", lambda task: ((), ()))
    with pytest.raises(RequestedQualities, match="plain"):
        libero_demos.record(config, task, tmp_path)


@pytest.mark.slow
def test_all_stages_in_the_simulator(tmp_path: Path, capsys) -> None:
    pytest.importorskip("libero", reason="LIBERO is not installed")
    demos_dir = tmp_path / "demos"
    options = [
        "demos",
        "demo_episodes=1",
        "num_workers=0",
        "max_steps=250",
        "quality=plain",
        f"demos_dir={demos_dir}",
        f"run_dir={tmp_path / 'recorded'}",
    ]
    assert cli.main(["train", "libero", options[0], *SMOKE[1:], *options[1:]]) == 0
    manifest = json.loads(next(demos_dir.glob("*/manifest.json")).read_text())
    assert manifest["facts"]["instruction"] == "close the top drawer of the cabinet" and manifest["rows"] > 20
    run = train(tmp_path / "run", demos_dir, "quality=plain")  # test_view.py tests simplified meshes
    args = ["--benchmark", "libero_90", "--num_tasks", "1", "--max_steps", "6", "--exec_horizon", "3", "--record_video"]
    video = ["--video_output_dir", str(tmp_path / "films"), "episodes=2", "policies=policy,random", "num_workers=1"]
    assert cli.main(["eval", str(run), *args, *video]) == 0
    rows = json.loads((run / "eval-libero.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["policy", "random"] and all(row["steps"] == 6 for row in rows)
    assert list((tmp_path / "films").iterdir()), "no film was written"
    export = ["train", "libero", "export", *SMOKE[1:], f"demos_dir={demos_dir}", f"run_dir={tmp_path / 'exported'}"]
    assert cli.main(export) == 0
    assert (tmp_path / "exported" / "lerobot" / "meta" / "info.json").exists()
