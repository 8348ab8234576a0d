"""Writes outside the copy of the working folder: which stop a run, and which are none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from powerband.attach.audit.short_run import Limits, run_short

WRITES = {
    "torch.save": "import torch; torch.save({}, OUTSIDE + '/x.pt')",
    "os.symlink": "import os; os.symlink('train.py', OUTSIDE + '/x')",
    "os.link": "import os; os.link('train.py', OUTSIDE + '/x')",
    "sqlite3": "import sqlite3; sqlite3.connect(OUTSIDE + '/x.db')",
    "sqlite3 by its address": "import sqlite3; sqlite3.connect(f'file:{OUTSIDE}/x.db', uri=True)",
    "mkdir": "from pathlib import Path; Path(OUTSIDE, 'x').mkdir()",
}
NO_WRITES = """
import os, sqlite3, torch
os.makedirs(OUTSIDE, exist_ok=True)
os.makedirs(OUTSIDE + "/old", exist_ok=True)
sqlite3.connect(":memory:")
sqlite3.connect(f"file:{OUTSIDE}/old.db?mode=ro", uri=True).execute("select * from t")
sqlite3.connect("own.db").execute("create table t (x)")
os.symlink(OUTSIDE, "link")
torch.save({}, "own.pt")
"""


@pytest.mark.parametrize("name", WRITES)
def test_a_write_outside_the_copy_is_stopped(name: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "work", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "train.py").write_text(f"OUTSIDE = {str(outside)!r}\n{WRITES[name]}")
    found = run_short([sys.executable, "train.py"], folder, {}, Limits(most_s=60))
    assert Path(found.outside).parent == outside, found.console
    assert list(outside.iterdir()) == []


def test_folders_that_exist_and_reads_are_no_writes(tmp_path: Path) -> None:
    import sqlite3

    folder, outside = tmp_path / "work", tmp_path / "outside"
    folder.mkdir()
    (outside / "old").mkdir(parents=True)
    with sqlite3.connect(outside / "old.db") as database:
        database.execute("create table t (x)")
    (folder / "train.py").write_text(f"OUTSIDE = {str(outside)!r}\n{NO_WRITES}")
    found = run_short([sys.executable, "train.py"], folder, {}, Limits(most_s=60))
    assert (found.status, found.outside) == (0, ""), found.console
    assert {"own.pt", "own.db"} <= set(found.files)


LINKS = """
import os, shutil
os.rename("big.bin", "moved.bin")
os.remove("moved.bin")
os.symlink(OUTSIDE, "new")
os.symlink("other", "new2")
os.rename("new2", "new")
os.remove("new")
open("second.bin", "a")
"""


def test_links_in_the_copy_may_be_renamed_and_removed_but_not_written(tmp_path: Path) -> None:
    folder, outside = tmp_path / "work", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for name in ("big.bin", "second.bin"):
        (outside / name).write_text("data")
        (folder / name).symlink_to(outside / name)
    (folder / "train.py").write_text(f"OUTSIDE = {str(outside)!r}\n{LINKS}")
    found = run_short([sys.executable, "train.py"], folder, {}, Limits(most_s=60))
    assert found.outside == f"second.bin -> {outside / 'second.bin'}", found.console
    assert sorted(path.name for path in outside.iterdir()) == ["big.bin", "second.bin"]
