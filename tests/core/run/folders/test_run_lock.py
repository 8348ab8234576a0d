"""RunLock: one writer per run folder; locks of ended processes and silent machines are replaced."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import runs
from powerband.cli import main as cli
from powerband.core.errors import ConfigError
from powerband.core.ranks.ranks import Ranks
from powerband.core.run.folders import run_lock
from powerband.core.run.folders.folder_agreement import LockedFolder
from powerband.core.run.folders.owned_folder import OwnedFolder
from powerband.core.run.folders.run_lock import RunLock
from powerband.core.run.folders.storage import Storage


def written(path: Path, **changes: object) -> None:
    """Replaces facts of a lock, as if another process had written it."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "token": "other", **changes}))


def test_a_process_that_does_not_get_the_lock_removes_no_file_of_its_owner(tmp_path: Path) -> None:
    """Two processes start in one new folder: this one has created it, and the other one was faster to lock it."""
    folder = tmp_path / "run"
    folder.mkdir()
    lock = RunLock(folder)
    (folder / "run.json").write_text("{}")
    LockedFolder(folder, created=True).give_up()
    assert (folder / "run.json").exists()
    lock.release()
    (folder / "run.json").unlink()
    LockedFolder(folder, created=True).give_up()
    assert not folder.exists()


def test_a_second_writer_is_refused_and_a_released_lock_leaves_nothing(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on"):
        RunLock(tmp_path)
    lock.release()
    RunLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_an_ended_process_is_replaced(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    text = lock.path.read_text()
    for facts in ({"pid": int(ended.stdout)}, {"began": 1}):  # the second one: the process id is used again
        lock.path.write_text(text)
        written(lock.path, **facts)
        RunLock(tmp_path).release()
    lock.release()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "1"}', '{"pid": -1, "began": 2}'])
def test_a_damaged_lock_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / run_lock.NAME).write_text(text)
    RunLock(tmp_path).release()


def test_a_lock_of_another_machine_holds_until_it_is_silent(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    written(lock.path, place=["elsewhere"], hostname="elsewhere", pid=1)
    with pytest.raises(ConfigError, match="process 1 on elsewhere"):
        RunLock(tmp_path)
    past = time.time() - run_lock.STALE_S - 5
    os.utime(lock.path, (past, past))
    RunLock(tmp_path).release()
    lock.release()


def test_the_holder_renews_its_lock_and_notices_that_it_is_lost(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(run_lock, "RENEW_S", 0.02)
    lock = RunLock(tmp_path)
    os.utime(lock.path, (1, 1))
    deadline = time.monotonic() + 10
    while lock.path.stat().st_mtime < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lock.path.stat().st_mtime > 2 and not lock.lost
    written(lock.path)
    while not lock.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lock.lost
    lock.release()
    assert lock.path.exists(), "the lock of the other process must stay"


def test_a_lock_that_cannot_be_read_for_a_moment_is_not_lost(tmp_path: Path, monkeypatch) -> None:
    lock = RunLock(tmp_path)

    def fails(*_, **__) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_text", fails)
        assert lock.is_held() and not lock.lost
    assert lock.is_held()
    lock.path.unlink()
    assert not lock.is_held() and lock.lost


def test_a_run_that_lost_its_folder_writes_nothing_more(tmp_path: Path) -> None:
    """The lock is read again before a save and at the end, because it is renewed only every 15 seconds."""
    ranks = Ranks()
    own = LockedFolder(tmp_path, lock=RunLock(tmp_path))
    folder = OwnedFolder(Storage.shared(ranks, tmp_path), own)
    folder.write_processes()
    folder.check_lock_on_all_ranks()
    written(own.lock.path)
    with pytest.raises(ConfigError, match="Another process took over"):
        folder.check_lock_on_all_ranks()
    folder.write_end("lost")
    own.give_up()
    assert json.loads((tmp_path / "processes.json").read_text())["ended"] is None


def test_of_many_at_once_one_wins(tmp_path: Path) -> None:
    (tmp_path / run_lock.NAME).write_text("{")  # stale, so that all of them remove it

    def attempt(_: int) -> RunLock | None:
        try:
            return RunLock(tmp_path)
        except ConfigError:
            return None

    with ThreadPoolExecutor(16) as pool:
        locks = [lock for lock in pool.map(attempt, range(64)) if lock is not None]
    assert len([lock for lock in locks if json.loads(lock.path.read_text())["token"] == lock.token]) == 1
    for lock in locks:
        lock.release()


def test_a_disk_without_hard_links_has_locks_too(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(run_lock.os, "link", refuse)
    lock = RunLock(tmp_path)
    with pytest.raises(ConfigError, match="in use"):
        RunLock(tmp_path)
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_use_is_not_resumed_and_its_checkpoints_stay(tmp_path: Path, capsys) -> None:
    run = runs.train("cartpole", tmp_path / "run", "num_workers=0", "env_steps=128", "save_interval=64")
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    lock = RunLock(run)
    assert cli.main(["train", "gym", f"resume={run / 'checkpoints' / kept[0]}", "env_steps=640"]) == 2
    assert "in use by process" in capsys.readouterr().err
    lock.release()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == kept
    runs.resume("cartpole", run, "env_steps=192")
    assert not (run / run_lock.NAME).exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "policy", "checkpoints/.saving-640"])
def test_a_run_folder_with_links_is_refused(tmp_path: Path, name: str, capsys) -> None:
    run = runs.train("cartpole", tmp_path / "run", "num_workers=0", "env_steps=64")
    target, link = tmp_path / "outside", run / name
    target.mkdir()
    if link.exists():
        link.rename(tmp_path / "moved")
        target = tmp_path / "moved"
    link.symlink_to(target)
    for command in (["train", "gym", f"resume={run}", "env_steps=128"], ["eval", str(run)], ["report", str(run)]):
        assert cli.main(command) == 2
        assert "is a symbolic link" in capsys.readouterr().err
    assert list((tmp_path / "outside").iterdir()) == []


def test_without_proc_a_lock_grows_stale_by_its_age(tmp_path: Path, monkeypatch) -> None:
    """No process start is known there, so that of an ended process equals that of a live one."""
    monkeypatch.setattr(run_lock, "process_start_ticks", lambda pid: None)
    lock = RunLock(tmp_path)
    written(lock.path, began=None, token="another")
    with pytest.raises(ConfigError, match="in use"):
        RunLock(tmp_path)
    past = time.time() - run_lock.STALE_S - 5
    os.utime(lock.path, (past, past))
    RunLock(tmp_path).release()
    lock.release()
