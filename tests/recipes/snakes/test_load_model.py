"""``--load_model`` and its two companions of the guide name a run and a checkpoint, or are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerband.core.config.flags import Flag, from_arguments
from powerband.core.errors import ConfigError
from powerband.recipes.snakes.load_model import resumed_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs" / "run3"
    for step in (20_000, 60_000):
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("--load_model", "last"),
        ("--load_model somewhere", "somewhere"),
        ("--load_model --load_model_run 3", "runs/run3"),
        ("--load_model_run runs/run3", "runs/run3"),
        ("--load_model --load_model_run 3 --load_model_run_episode 299", "20000"),
        ("--load_model --load_model_run_episode 300", "60000"),
    ],
)
def test_the_switch_the_run_and_the_episode_become_one_resume(words: str, target: str, run: Path) -> None:
    flags, (notice,) = resumed_run(from_arguments([*words.split(), "--seed", "5"]))
    assert flags[0] == Flag("seed", "5", "command line")
    assert flags[1].name == "run.resume" and str(flags[1].value).endswith(target)
    assert str(flags[1].value) in notice


def test_the_switch_can_be_off() -> None:
    assert resumed_run(from_arguments(["--load_model", "false"]))[0] == []
    assert resumed_run(from_arguments(["--seed", "5"])) == (from_arguments(["--seed", "5"]), [])


@pytest.mark.parametrize(
    ("words", "message"),
    [("--load_model_run_episode 99", "with a checkpoint: 100, 300"), ("--load_model_run_episode x", "the number of")],
)
def test_episodes_without_a_checkpoint_are_refused(words: str, message: str, run: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resumed_run(from_arguments(words.split()))
