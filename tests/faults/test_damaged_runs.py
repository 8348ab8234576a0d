"""Run folders with damaged or hostile files: the commands that show and continue a run never end in a traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import runs
from powerband.cli import main as cli

LINES = [
    {
        "env_steps": 100 * step,
        "grad_steps": 50 * step,
        "time_s": 2.0 * step,
        "charts/SPS": 50.0,
        "losses/actor": 1.0 / step,
        "eval/return": float(step),
        "perf/share/env": 0.4,
        "perf/share/update": 0.5,
        "perf/idle/env-bound": 0.4,
    }
    for step in range(1, 6)
]
EVENTS = [
    {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": "steps"}},
    {"name": "thread_name", "ph": "M", "pid": 0, "tid": 2, "args": {"name": "loop"}},
    {"name": "step", "ph": "X", "pid": 0, "tid": 1, "ts": 0, "dur": 100, "args": {"env_steps": 4, "grad_steps": 1}},
    {"name": "update", "ph": "X", "pid": 0, "tid": 2, "ts": 10, "dur": 50, "args": {"depth": 0}},
]
STUDY = {
    "objective": "score",
    "score": "return",
    "target": 5.0,
    "seconds": 60.0,
    "chosen": {"lr": 0.1},
    "verification": {
        "seeds": [1],
        "times": [2.0],
        "present_times": [None],
        "budget_s": 9.0,
        "ratio": {"value": 0.5, "low": 0.4, "high": 0.6},
        "saved_s": 3.0,
    },
    "importances": {"lr": 0.7},
    "pays_off_after": 3,
    "trials": [
        {
            "setting": {"lr": 0.1},
            "seed": 0,
            "present": False,
            "curve": [[1, 2.0, 3.0]],
            "outcome": "ended",
            "message": "",
        }
    ],
    "settings": [{"setting": {"lr": 0.1}, "seconds": 2.0, "times": [2.0], "best_score": 3.0, "steps_per_s": 9.0}],
}
FILES: dict[str, Any] = {
    "config.json": {"env_id": "Pendulum-v1", "run": {"env_steps": 1000, "time_limit_s": 0.0, "run_dir": "runs/a"}},
    "run.json": {"recipe": "gym", "stage": "train", "command": "powerband train gym", "host": {"cpu": "x", "gpus": []}},
    "processes.json": {"ranks": [{"hostname": "elsewhere", "pid": 7, "began": 9}], "ended": "budget reached"},
    "trace.json": {"traceEvents": EVENTS},
    "eval-episodes.json": {"rows": [{"policy": "last", "return": 2.0, "return_95": [1.0, 3.0]}]},
    "tuning.json": STUDY,
}
WRONG = [None, True, -1, 10**30, 1e300, -1e-300, float("nan"), float("inf"), "", "<b>", [], [[]], {}, {"a": {}}]
"""Values in place of others."""
DAMAGE = [b"", b"{", b"\0" * 100, b"\xff\xfe", b"[" * 50_000, b"9" * 5000, b'{"a": ' * 500 + b"1" + b"}" * 500, b"[1]"]
"""Contents in place of those of a file."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An ended run with every file that the commands read."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name, value in FILES.items():
        (folder / name).write_text(json.dumps(value))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    shutil.copytree(folder, tmp_path / "other")
    return folder


def show(folder: Path, capsys) -> str:
    """Runs watch, report and the comparison of two runs, and returns their standard error."""
    for arguments in (
        ["watch", str(folder), "--once"],
        ["report", str(folder), f"to={folder.parent / 'a.html'}"],
        ["report", str(folder.parent / "other"), str(folder), f"to={folder.parent / 'b.html'}"],
    ):
        status = cli.main(arguments)
        assert status in (0, 1, 2), arguments
    return capsys.readouterr().err


def mutated(value: Any, rng: random.Random) -> Any:
    """`value` with one member, at any depth, removed or replaced by one of `WRONG`."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice(WRONG)
    copy = dict(value) if isinstance(value, dict) else list(value)
    key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
    if rng.random() < 0.15:
        del copy[key]
    else:
        copy[key] = mutated(copy[key], rng)
    return copy


def test_an_undamaged_folder_is_shown_without_a_message(folder: Path, capsys) -> None:
    assert show(folder, capsys) == ""
    page = (folder.parent / "a.html").read_text()
    assert "Recorded steps" in page and "Tuning" in page and "Pareto front" in page and "Evaluation" in page


def test_hostile_json_files_are_shown_or_refused(folder: Path, capsys) -> None:
    rng = random.Random(0)
    for number in range(300):
        name = rng.choice(list(FILES))
        value = mutated(FILES[name], rng)
        (folder / name).write_text(json.dumps(value))
        try:
            show(folder, capsys)
        except Exception as error:
            raise AssertionError(f"mutation {number}: {name}: {json.dumps(value)[:400]}") from error
        (folder / name).write_text(json.dumps(FILES[name]))


def test_hostile_metrics_are_shown_or_refused(folder: Path, capsys) -> None:
    rng = random.Random(1)
    for number in range(100):
        lines = [mutated(line, rng) if rng.random() < 0.5 else line for line in LINES]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        try:
            show(folder, capsys)
        except Exception as error:
            raise AssertionError(f"mutation {number}: {lines}") from error


@pytest.mark.parametrize("name", [*FILES, "metrics.jsonl", "shot.png"])
def test_files_of_another_kind_are_shown_or_refused(name: str, folder: Path, capsys) -> None:
    path = folder / name
    for damage in DAMAGE:
        path.write_bytes(damage)
        show(folder, capsys)
        cli.main(["eval", str(folder)])
    for place in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        place()
        show(folder, capsys)
        cli.main(["eval", str(folder)])


def test_damaged_metrics_are_counted_once_by_each_command(folder: Path, capsys) -> None:
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"env_steps": 1, "gra\n' + b"\0\0\n" + b"\xff\n")
    assert cli.main(["watch", str(folder), "--once"]) == 0
    assert capsys.readouterr().err.count("3 damaged lines skipped") == 1
    assert cli.main(["report", str(folder)]) == 0
    assert capsys.readouterr().err.count("3 damaged lines skipped") == 1
    assert "3 damaged lines skipped" in (folder / "report.html").read_text()
    assert cli.main(["report", str(folder), str(folder.parent / "other")]) == 0
    assert capsys.readouterr().err.count("3 damaged lines skipped") == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of a short run with a checkpoint at step 100."""
    return runs.train("ddpg", tmp_path_factory.mktemp("trained") / "run", "env_steps=100", "log_interval=20")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of `trained`."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_resume_skips_damaged_metrics_and_continues(run: Path, capsys) -> None:
    whole = runs.metrics(run)
    text = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"\0\0\0\n" + text[0] + b"\xff\xff\n" + b"".join(text[1:]) + b'{"env_ste')
    capsys.readouterr()
    runs.resume("ddpg", run, "env_steps=140")
    assert capsys.readouterr().out.count("3 damaged lines skipped") == 1
    lines = runs.metrics(run)
    assert lines[: len(whole) - 1] == whole[:-1] and lines[-1]["env_steps"] == 140


def refused(capsys, *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(["train", "snakes", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and len(message) < 1000, message
    return message


def test_a_resume_with_another_run_dir_is_refused(run: Path, tmp_path: Path, capsys) -> None:
    message = refused(capsys, f"resume={run}", f"run_dir={tmp_path / 'new'}", "env_steps=140")
    assert "continues in its own folder" in message and not (tmp_path / "new").exists()
    assert cli.main(["train", "snakes", f"resume={run}", f"run_dir={run}", "env_steps=104"]) == 0


def test_resuming_without_a_checkpoint_says_what_happened(run: Path, capsys) -> None:
    shutil.rmtree(run / "checkpoints")
    facts = json.loads((run / "processes.json").read_text())
    (run / "processes.json").write_text(json.dumps({**facts, "ended": "ValueError: the disk is on fire"}))
    message = refused(capsys, f"resume={run}", "env_steps=140")
    assert "ended before its first checkpoint: ValueError: the disk is on fire" in message
    assert f"powerband train snakes run_dir=NEW --config {run / 'config.json'}" in message
    (run / "processes.json").write_text(json.dumps({**facts, "ended": None}))
    assert "was killed" in refused(capsys, f"resume={run}", "env_steps=140")
    config = [f"--config={run / 'config.json'}", f"run_dir={run.parent / 'new'}", "env_steps=8"]
    assert cli.main(["train", "snakes", *config]) == 0, "the command that the message names"


@pytest.mark.parametrize("name", ["metrics.jsonl", "train.log"])
def test_a_log_that_cannot_be_written_is_named(name: str, run: Path, capsys) -> None:
    (run / name).unlink()
    (run / name).mkdir()
    assert f"{run / name} cannot be written" in refused(capsys, f"resume={run}", "env_steps=140")
    assert not (run / ".lock").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root alone may act as another user")
def test_a_folder_of_another_user_is_refused(run: Path, capsys) -> None:
    for parent in run.parents:
        if parent.name.startswith(("pytest-", "popen-", "test_")):  # pytest makes them private
            parent.chmod(0o755)
    os.seteuid(65534)
    try:
        assert "cannot be written" in refused(capsys, f"resume={run}", "env_steps=140")
    finally:
        os.seteuid(0)


def test_texts_that_a_terminal_would_obey_or_that_are_no_utf8_are_escaped(folder: Path, capsys) -> None:
    hostile = "\x1b]0;title\x07 \ud800 end"
    (folder / os.fsdecode(b"shot-\xff\x1b[2J.png")).write_bytes(b"")
    (folder / "processes.json").write_text(json.dumps({"ranks": [], "ended": hostile}))
    run = {**FILES["run.json"], "command": hostile, "host": {hostile: hostile}}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "eval-a.json").write_text(json.dumps({"rows": [{hostile: hostile}]}))
    assert cli.main(["watch", str(folder), "--once"]) == 0
    assert cli.main(["report", str(folder)]) == 0
    (folder / "run.json").write_text(json.dumps({**run, "recipe": hostile}))
    assert cli.main(["eval", str(folder)]) == 2
    assert cli.main(["train", "gym", f"resume={folder}"]) == 2
    output = "".join(capsys.readouterr())
    assert "\x1b" not in output and output.encode() and "\\x1b" in output


def test_weights_of_another_shape_are_refused_by_eval(tmp_path: Path, capsys) -> None:
    run = runs.train("sac", tmp_path / "run", "env_steps=44", "num_workers=0")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "env_id": "MountainCarContinuous-v0"}))
    capsys.readouterr()
    assert cli.main(["eval", str(run), "episodes=1"]) == 2
    checkpoint, message = capsys.readouterr().err.splitlines()
    assert "checkpoints/44" in checkpoint and "the saved learner does not fit" in message
