"""The folder of a run: paths above the working folder, PYTHONPATH, names of folders, and a long output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from powerband.attach.audit.offline_copy import CONSOLE_BYTES, offline_copy
from powerband.attach.audit.short_run import Limits, ShortRun, run_short
from powerband.attach.trial import trial_run


def run(folder: Path, source: str, *command: str) -> ShortRun:
    """Runs a command in a copy of `folder`, by default the script ``train.py`` with the text `source`."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(source)
    return run_short(command or [sys.executable, "train.py"], folder, {}, Limits(most_s=30))


def test_relative_paths_above_the_working_folder_exist(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("beside")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "other.py").write_text("print('other', open('../data.txt').read())")
    (tmp_path / "venv").symlink_to(sys.prefix)
    folder = tmp_path / "project" / "work"
    folder.parent.mkdir()
    found = run(folder, "print(open('../../data.txt').read(), __file__, __import__('os').getcwd())")
    assert (found.status, found.console) == (0, f"beside {folder}/train.py {folder}\n")
    python = f"../../venv/bin/{Path(sys.executable).name}"
    found = run(folder, "", python, "../../library/other.py")
    assert found.status == 1 and "FileNotFoundError: " in found.last_error() and "'../data.txt'" in found.last_error()
    folder = tmp_path / "flat"
    found = run(folder, "", f"../venv/bin/{Path(sys.executable).name}", "../library/other.py")
    assert (found.status, found.console) == (0, "other beside\n")


def test_a_write_above_the_working_folder_is_named_with_the_path_of_the_user(tmp_path: Path) -> None:
    found = run(tmp_path / "work", "open('../new.txt', 'w')")
    assert found.outside == str(tmp_path / "new.txt") and not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("name", ["console", "settings.json", "records", "tmp", "copy"])
def test_a_working_folder_may_have_a_name_that_powerband_uses(name: str, tmp_path: Path) -> None:
    assert run(tmp_path / name, "print('ran')").console == "ran\n"


def test_modules_of_pythonpath_come_from_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "own.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "src"), str(tmp_path)]))
    with offline_copy(["python"], folder, "powerband-test-") as place:
        assert place.variables["PYTHONPATH"] == os.pathsep.join([str(place.copy / "src"), str(tmp_path)])
    found = run(folder, "import own, os; print(os.path.samefile(own.__file__, 'src/own.py'))")
    assert found.console == "True\n"


def test_a_trial_accepts_the_original_and_the_copied_line_of_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def settings(place: Any, values: dict[str, Any]) -> Path:
        seen.append((place.copy, values["where"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(trial_run, "_settings", settings)
    line = f"{tmp_path}/train.py:3"
    with pytest.raises(KeyboardInterrupt):
        trial_run.run_once(["python"], tmp_path, {"where": [line]}, {}, 1.0)
    assert seen == [(seen[0][0], [f"{seen[0][0]}/train.py:3", line])]


def test_the_error_after_a_long_output_is_kept(tmp_path: Path) -> None:
    found = run(tmp_path / "work", f"print('x' * {CONSOLE_BYTES + 300_000})\nraise ValueError('own')")
    assert found.last_error() == "ValueError: own" and len(found.console) == CONSOLE_BYTES
    assert found.output.startswith("xxx") and "Traceback (most recent call last)" in found.output


def test_a_crash_has_the_status_of_the_shell(tmp_path: Path) -> None:
    found = run(tmp_path / "work", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert found.status == 139 and found.failed
