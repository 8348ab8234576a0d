"""A sequence of stages starts new runs, continues unfinished ones, and keeps the log of one without a checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.errors import ConfigError
from powerband.core.run import stage_sequence
from powerband.core.run.stage_sequence import StageCommand, run_stages

TRAIN = StageCommand("expert-reach", ("train", "metaworld", "expert", "--config", "shared.yaml"))
EVAL = StageCommand("evaluate", ("eval", "runs/train"))


def test_a_stage_is_started_continued_or_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "expert-reach"
    assert TRAIN.for_folder(folder) == [*TRAIN.arguments, f"run_dir={folder}"]
    (folder / "checkpoints").mkdir(parents=True)
    assert TRAIN.for_folder(folder) == ["train", "metaworld", "expert", f"resume={folder}"]
    (folder / "checkpoints").rmdir()
    (folder / "train.log").write_text("the reason")
    assert TRAIN.for_folder(folder) == [*TRAIN.arguments, f"run_dir={folder}"]
    assert (tmp_path / "expert-reach-ended-1" / "train.log").read_text() == "the reason"
    assert EVAL.for_folder(folder) == [*EVAL.arguments]


def test_complete_stages_are_kept_and_a_failure_says_how_to_continue(tmp_path: Path, monkeypatch: Any) -> None:
    notes: list[str] = []
    run: Any = SimpleNamespace(console=SimpleNamespace(note=notes.append), received_signal="")
    statuses = {"expert": 0, "runs/train": 2}
    monkeypatch.setattr(
        stage_sequence.subprocess,
        "run",
        lambda words: SimpleNamespace(returncode=statuses[words[4 if "eval" in words else 5]]),
    )
    with pytest.raises(ConfigError, match="evaluate ended with status 2.*write it again again to continue"):
        run_stages(run, [TRAIN, EVAL], tmp_path, "it again")
    statuses["runs/train"] = 0
    assert run_stages(run, [TRAIN, EVAL], tmp_path, "it") == ["evaluate"]
    assert "stage 1 of 2: expert-reach is done already" in notes
