"""A sequence of stages starts new runs, continues unfinished ones, and keeps the log of one without a checkpoint."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.errors import ConfigError
from powerband.core.run import stage_sequence
from powerband.core.run.stage_sequence import StageCommand, run_stages

TRAIN = StageCommand("expert-reach", ("train", "metaworld", "expert", "--config", "shared.yaml"))
EVAL = StageCommand("evaluate", ("eval", "runs/train"))


def running(notes: list[str], ranks: int = 1) -> Any:
    """What a sequence uses of a run."""
    run = SimpleNamespace(console=SimpleNamespace(note=notes.append), received_signal="", reasons=[])
    run.ranks, run.stop = SimpleNamespace(world_size=ranks), run.reasons.append
    return run


def test_a_stage_is_started_continued_or_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "expert-reach"
    assert TRAIN.for_folder(folder) == [*TRAIN.arguments, f"run_dir={folder}"]
    (folder / "checkpoints" / "20").mkdir(parents=True)
    assert TRAIN.for_folder(folder) == ["train", "metaworld", "expert", f"resume={folder}"]
    (folder / "checkpoints" / "20").rename(folder / "checkpoints" / ".saving-20")  # killed within its first save
    (folder / "train.log").write_text("the reason")
    assert TRAIN.for_folder(folder) == [*TRAIN.arguments, f"run_dir={folder}"]
    assert (tmp_path / "expert-reach-ended-1" / "train.log").read_text() == "the reason"
    assert EVAL.for_folder(folder) == [*EVAL.arguments]


def test_complete_stages_are_kept_and_a_failure_says_how_to_continue(tmp_path: Path, monkeypatch: Any) -> None:
    notes: list[str] = []
    run = running(notes)
    statuses = {"metaworld": 0, "runs/train": 2}
    monkeypatch.setattr(stage_sequence, "_run_command", lambda words, run: statuses[words[1]])
    with pytest.raises(ConfigError, match="evaluate ended with status 2.*write it again again to continue"):
        run_stages(run, [TRAIN, EVAL], tmp_path, "it again")
    statuses["runs/train"] = 0
    assert run_stages(run, [TRAIN, EVAL], tmp_path, "it") == ["evaluate"]
    assert "stage 1 of 2: expert-reach is done already" in notes


def test_a_stage_with_other_settings_is_repeated_with_all_later_ones(tmp_path: Path, monkeypatch: Any) -> None:
    notes: list[str] = []
    started: list[str] = []

    def start(command: list[str], run: Any) -> int:
        """Writes the configuration that the stage would write."""
        started.append(command[2] if command[0] == "train" else command[0])
        if command[0] == "train":
            folder = Path(command[-1].partition("=")[2])
            (folder / "checkpoints" / "9").mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps({"tasks": tasks}))
        return 0

    monkeypatch.setattr(stage_sequence, "_run_command", start)

    def sequence() -> list[str]:
        represent = StageCommand("represent", ("train", "metaworld", "represent"), {"tasks": tasks})
        distill = StageCommand("distill", ("train", "metaworld", "distill"))
        return run_stages(running(notes), [TRAIN, represent, distill, EVAL], tmp_path, "it")

    tasks = ["reach"]
    assert sequence() == ["expert-reach", "represent", "distill", "evaluate"] and sequence() == []
    tasks = ["reach", "door-open"]
    (tmp_path / "runs" / "represent.done").unlink()  # a run with the earlier tasks is not continued either
    assert sequence() == ["represent", "distill", "evaluate"] and sequence() == []
    assert started == ["expert", "represent", "distill", "eval", "represent", "distill", "eval"]
    assert "because the option tasks has changed" in " ".join(notes)
    kept = json.loads((tmp_path / "runs" / "represent-ended-1" / "config.json").read_text())
    assert kept == {"tasks": ["reach"]}


def test_a_signal_reaches_the_stage_and_ends_the_sequence(tmp_path: Path, monkeypatch: Any) -> None:
    """The stage here is a program that saves after SIGTERM; it takes the place of powerband for the child process."""
    (tmp_path / "powerband.py").write_text(
        "import pathlib, signal, sys\n"
        "def save(number, frame):\n"
        "    pathlib.Path('saved').write_text('yes')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path('started').write_text('yes')\n"
        "signal.pause()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(stage_sequence, "POLL_S", 0.05)
    run = running([])
    run.console.note = lambda text: threading.Thread(target=terminate_once_started, args=(run, tmp_path)).start()
    assert run_stages(run, [TRAIN, EVAL], tmp_path, "it") == []
    assert (tmp_path / "saved").exists() and "SIGTERM in stage expert-reach" in run.reasons[0]
    assert not (tmp_path / "runs" / "expert-reach.done").exists()


def test_a_stage_has_no_launcher_that_its_failure_could_be_reported_to(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "powerband.py").write_text(
        "import json, os, pathlib\npathlib.Path('variables').write_text(json.dumps(dict(os.environ)))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = ["POWERBAND_JOB", "POWERBAND_RUN_DIR", "POWERBAND_OUTCOME", "POWERBAND_STATUSES", "TORCHELASTIC_RUN_ID"]
    for name in (*names, "RANK", "OF_THE_USER"):
        monkeypatch.setenv(name, "0")
    assert run_stages(running([]), [EVAL], tmp_path, "it") == ["evaluate"]
    child = json.loads((tmp_path / "variables").read_text())
    assert "OF_THE_USER" in child and not {*names, "RANK"} & child.keys()


def terminate_once_started(run: Any, folder: Path) -> None:
    while not (folder / "started").exists():
        time.sleep(0.05)
    run.received_signal = "SIGTERM"


def test_a_pipeline_on_several_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 ranks here. Start it with nproc=1"):
        run_stages(running([], ranks=2), [TRAIN], tmp_path, "it")
