"""The copy of the working folder: what is linked, and which words of a command line name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerband.attach.audit.source_scan import SourceScan
from powerband.attach.audit.working_copy import copied_bytes, copy_folder, redirected


@pytest.mark.parametrize("name", ["env", "venv", "my_environment"])
def test_a_folder_is_a_virtual_environment_if_it_contains_pyvenv_cfg(name: str, tmp_path: Path) -> None:
    source = tmp_path / "work"
    (source / name).mkdir(parents=True)
    (source / name / "maze.py").write_text("size = 3\n")
    copy_folder(source, tmp_path / "package")
    assert not (tmp_path / "package" / name).is_symlink() and (tmp_path / "package" / name / "maze.py").is_file()
    assert list(SourceScan(source).trees) == [f"{name}/maze.py"] and copied_bytes(source) == 9

    (source / name / "pyvenv.cfg").touch()
    copy_folder(source, tmp_path / "environment")
    assert (tmp_path / "environment" / name).is_symlink()
    assert SourceScan(source).trees == {} and copied_bytes(source) == 0


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("/home/u/proj", "/copy"),
        ("/home/u/proj/train.py", "/copy/train.py"),
        ("--data=/home/u/proj/data", "--data=/copy/data"),
        ("dirs=[/home/u/proj,/x]", "dirs=[/copy,/x]"),
        ("cd /home/u/proj && python train.py", "cd /copy && python train.py"),
        ("/home/u/proj-data", "/home/u/proj-data"),
        ("/home/u/proj2/x", "/home/u/proj2/x"),
        ("/home/u/proj.old", "/home/u/proj.old"),
        ("/mnt/home/u/proj/x", "/mnt/home/u/proj/x"),
    ],
)
def test_only_the_folder_itself_and_paths_below_it_are_redirected(word: str, expected: str) -> None:
    assert redirected(word, Path("/home/u/proj"), Path("/copy")) == expected
