"""Evaluation of snakes: opponents are checked before the first game, and each has files of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.errors import ConfigError
from powerband.recipes.snakes import evaluation
from powerband.recipes.snakes.evaluation_options import Evaluation


def test_an_unknown_opponent_is_refused_before_the_first_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "play", lambda *given: pytest.fail("a game was played"))

    def load(folder: Path, context: Any) -> tuple[Any, str]:
        return SimpleNamespace(), "features"

    options = Evaluation(policies=("random", "greddy"))
    with pytest.raises(ConfigError, match="Unknown opponent 'greddy'. Did you mean 'greedy'"):
        evaluation.evaluate_run(tmp_path, options, load)


def test_opponents_with_the_same_last_folder_have_files_of_their_own() -> None:
    names = ("greedy", "runs/a/checkpoints/last", "/runs/b/checkpoints/last", "runs/c", "runs/greedy", ".")
    assert evaluation.file_labels(names) == {
        "greedy": "greedy",
        "runs/a/checkpoints/last": "runs-a-checkpoints-last",
        "/runs/b/checkpoints/last": "runs-b-checkpoints-last",
        "runs/c": "c",
        "runs/greedy": "runs-greedy",
        ".": ".",
    }
