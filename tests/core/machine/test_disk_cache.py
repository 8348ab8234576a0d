"""Disk cache: files are read again, damaged files are created again, and no failure ends a run."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from powerband.core.machine.disk_cache import STALE_S, DiskCache, digest

CACHE = DiskCache("numbers", 2, "cached numbers are computed again", "numbers are not cached", ", or cache=false")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "powerband" / "numbers"


def load(file: Path, name: str = "number") -> int:
    if name == "damaged":
        raise ValueError(f"{file} is damaged.")
    return int(load_file(file)[name])


def store(number: int) -> Path:
    file = CACHE.file(str(number).encode())
    CACHE.write(file, lambda part: save_file({"number": np.array(number)}, part))
    return file


def test_the_name_is_a_hash_of_all_inputs() -> None:
    array = np.arange(6.0)
    origins = [(b"a",), (b"b",), (array,), (array + 1,), (array.reshape(2, 3),), (array.astype("f4"),), (b"a", array)]
    assert len({digest(*origin) for origin in [*origins, (None,)]}) == 8
    assert digest(b"a", b"b") == hashlib.sha256(b"ab").hexdigest()[:32]
    assert digest(array[::2]) == digest(array[::2].copy())


def test_a_stored_file_is_read(folder: Path) -> None:
    assert CACHE.read(CACHE.file(b"1"), load) is None and not folder.exists()
    file = store(1)
    assert file == CACHE.file(b"1") == folder / f"{digest(b'1')}.safetensors"
    assert (
        CACHE.read(file, load) == 1 and CACHE.read(CACHE.file(b"2"), load) is None and list(folder.iterdir()) == [file]
    )


def test_the_default_is_the_home_folder_and_without_one_nothing_is_cached(folder: Path, monkeypatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(folder))
    assert CACHE.file(b"1").parent == folder / ".cache" / "powerband" / "numbers"

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert CACHE.file(b"1") is None
    CACHE.write(None, load)
    assert CACHE.read(None, load) is None


def test_an_unreadable_file_is_none_with_a_warning(folder: Path) -> None:
    file = store(1)
    file.write_bytes(b"no safetensors at all")
    for name in ("number", "other", "damaged"):  # SafetensorError, KeyError, ValueError
        with pytest.warns(UserWarning, match=r"^cached numbers are computed again: .*[^.]\.$"):
            assert CACHE.read(file, lambda file, name=name: load(file, name)) is None
        store(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CACHE.read(file, load) == 1


def test_a_failed_write_is_a_warning_and_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    def full(part: Path) -> None:
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    file = store(1)
    with pytest.warns(UserWarning, match=r"not cached \(No space left on device\).*another folder, or cache=false\.$"):
        CACHE.write(file, full)
    assert CACHE.read(file, load) == 1 and list(folder.iterdir()) == [file]
    folder.parent.rename(tmp_path / "away")
    folder.parent.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match=r"numbers are not cached \(.*XDG_CACHE_HOME"):
        assert CACHE.read(store(1), load) is None


def test_recently_used_files_stay_and_old_partial_files_are_removed(folder: Path) -> None:
    files = [store(number) for number in range(2)]
    for file, ago in zip(files, (30, 20), strict=True):
        os.utime(file, 2 * (time.time() - ago,))
    assert CACHE.read(files[0], load) == 0  # used last now
    for name, ago in (("x.part", 2 * STALE_S), ("now.part", 0), ("theirs.txt", 2 * STALE_S)):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, 2 * (time.time() - ago,))
    newest = store(2)
    assert set(folder.iterdir()) == {newest, files[0], folder / "now.part", folder / "theirs.txt"}


def test_a_cache_of_no_files_keeps_none(folder: Path) -> None:
    cache = replace(CACHE, max_files=0)
    file = cache.file(b"1")
    cache.write(file, lambda part: save_file({"number": np.array(1)}, part))
    assert list(folder.iterdir()) == [] and cache.read(file, load) is None
