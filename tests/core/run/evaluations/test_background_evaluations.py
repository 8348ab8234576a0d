"""Evaluations of checkpoints: where they run, what they cost, and that the training does not notice them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runs
from powerband.core.run.checkpoints.checkpoint_marks import (
    BEST,
    EVALUATING,
    Mark,
    marked_steps,
    queued,
    read_mark,
    read_marks,
    write_mark,
)
from powerband.core.run.evaluations.evaluator_process import EvaluatorProcess


def lines_of(run: Path, tag: str) -> list[dict]:
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if tag in line]


def losses(run: Path) -> list[tuple]:
    return [(line["env_steps"], line["losses/policy"]) for line in lines_of(run, "losses/policy")]


ARGUMENTS = ("num_workers=0", "eval_episodes=2", "env_steps=512", "log_interval=64")


@pytest.fixture(scope="module")
def background(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("background") / "run"
    return runs.train("cartpole", run, *ARGUMENTS, "eval_interval=128", "eval_process=on", "keep_checkpoints=1")


def test_results_of_the_process_enter_the_curves_at_the_step_of_their_checkpoint(background: Path) -> None:
    lines = lines_of(background, "eval/return")
    assert [line["env_steps"] for line in lines] == [128, 256, 384, 512]
    assert all(0 < a["time_s"] < b["time_s"] for a, b in zip(lines, lines[1:], strict=False))


def test_the_best_checkpoint_outlives_the_rotation(background: Path) -> None:
    scores = {line["env_steps"]: line["eval/return"] for line in lines_of(background, "eval/return")}
    best = max(scores, key=lambda step: scores[step])
    assert read_mark(background, BEST) == Mark(best, {"return": scores[best]})
    kept = {int(path.name) for path in (background / "checkpoints").iterdir() if path.name.isdigit()}
    best_before = max((128, 256), key=lambda step: scores[step])
    assert {best, 512} <= kept <= {best_before, 384, 512}, "step 384 was under evaluation at the last rotation"
    assert read_mark(background, EVALUATING) is None


def test_the_training_does_not_notice_evaluations(background: Path, tmp_path: Path) -> None:
    without = runs.train("cartpole", tmp_path / "without", *ARGUMENTS, "eval_share=0")
    inside = runs.train("cartpole", tmp_path / "inside", *ARGUMENTS, "eval_interval=128", "eval_process=off")
    assert losses(without) == losses(inside) == losses(background)
    values = [[line["eval/return"] for line in lines_of(run, "eval/return")] for run in (inside, background)]
    assert values[0] == values[1], "both processes play the same episodes"


def test_a_resume_repeats_an_evaluation_that_had_not_ended(tmp_path: Path) -> None:
    run = runs.train("cartpole", tmp_path / "run", *ARGUMENTS, "eval_share=0.02", "eval_process=on")
    assert not lines_of(run, "eval/return"), "a short run evaluates nothing by itself"
    write_mark(run, EVALUATING, Mark(512, {"grad_steps": 3, "time_s": 0.5}))
    runs.resume("cartpole", run, "env_steps=576")
    (line,) = lines_of(run, "eval/return")
    assert (line["env_steps"], line["grad_steps"]) == (512, 3)
    assert read_mark(run, BEST) == Mark(512, {"return": line["eval/return"]})


def test_a_resume_repeats_all_evaluations_that_waited_for_another(tmp_path: Path) -> None:
    settings = ("eval_share=0", "eval_process=on", "save_interval=128", "keep_checkpoints=3")
    run = runs.train("cartpole", tmp_path / "run", *ARGUMENTS, *settings)
    marks = {EVALUATING: 256, queued(384): 384, queued(512): 512}
    for name, step in marks.items():
        write_mark(run, name, Mark(step, {"grad_steps": 3, "time_s": 0.5}))
    assert marked_steps(run) == {256, 384, 512}, "a rotation keeps them"
    runs.resume("cartpole", run, "env_steps=576")
    assert [line["env_steps"] for line in lines_of(run, "eval/return")] == [256, 384, 512]
    assert set(read_marks(run)) == {BEST}


def test_a_resume_keeps_the_evaluation_of_its_checkpoint(tmp_path: Path) -> None:
    """The evaluation comes after the last line of the log before the checkpoint, which a resume repeats."""
    arguments = [argument for argument in ARGUMENTS if not argument.startswith("log_interval")]
    settings = ("log_interval=300", "eval_interval=512", "eval_process=on")
    run = runs.train("cartpole", tmp_path / "run", *arguments, *settings)
    (evaluated,) = lines_of(run, "eval/return")
    runs.resume("cartpole", run, "env_steps=640")
    assert lines_of(run, "eval/return")[0] == evaluated


def test_a_damaged_mark_protects_nothing(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    write_mark(tmp_path, BEST, Mark(7, {"return": 1.0}))
    assert marked_steps(tmp_path) == {7}
    for text in (
        "{",
        '{"step": "7", "figures": {}}',
        '{"step": 8, "figures": {}}',
        '{"step": 7, "figures": {"a": null}}',
    ):
        (tmp_path / "checkpoints" / BEST).write_text(text)
        assert marked_steps(tmp_path) == set()


def test_an_evaluator_that_fails_answers_with_an_error(tmp_path: Path) -> None:
    process = EvaluatorProcess("powerband.recipes.gym.train:open_evaluator", tmp_path)
    try:
        process.send(tmp_path / "checkpoints" / "3")
        answer = process.answer(120)
        assert answer is not None and "config.json" in answer.error and not answer.figures
        process._process.kill()
        process.send(tmp_path)
        ended = process.answer(20)
        assert ended is not None and "ended with status -9" in ended.error
    finally:
        process.close()
