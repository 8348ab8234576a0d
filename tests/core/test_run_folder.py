"""Run folders: creation by several processes and their refusal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from powerband.core.errors import ConfigError
from powerband.core.run_folder import claim_run_folder, create_folder


def test_of_several_processes_one_has_created_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: create_folder(folder), range(8))) == 1
    assert folder.is_dir() and not create_folder(folder)


def test_a_folder_that_existed_is_not_new_and_a_file_is_refused(tmp_path: Path) -> None:
    assert claim_run_folder("", str(tmp_path), "toy") == (tmp_path, False)
    assert claim_run_folder("", str(tmp_path / "a"), "toy") == (tmp_path / "a", True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        claim_run_folder("", str(tmp_path / "file"), "toy")
    (tmp_path / "a" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="already contains a run"):
        claim_run_folder("", str(tmp_path / "a"), "toy")


@pytest.mark.parametrize("name", ["config.json", "events.out.tfevents.1.host", "checkpoints/90000"])
def test_files_of_another_program_are_not_taken_for_those_of_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"contains {name}, which the run would overwrite or remove"):
        claim_run_folder("", str(tmp_path), "toy")
    assert (tmp_path / name).read_text() == "mine"
