"""Kept files: the next start reads what this one made; what is damaged is made anew; nothing here ends a run."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from powerband.core.machine.disk_cache import STALE_S, DiskCache, digest

KEPT = DiskCache("numbers", 2, "kept numbers are counted anew", "numbers are not kept", ", or count=false")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "powerband" / "numbers"


def load(file: Path, name: str = "number") -> int:
    if name == "damaged":
        raise ValueError(f"{file} is damaged.")
    return int(load_file(file)[name])


def keep(number: int) -> Path:
    file = KEPT.file(str(number).encode())
    KEPT.write(file, lambda part: save_file({"number": np.array(number)}, part))
    return file


def test_the_name_is_a_hash_of_all_that_a_file_follows_from() -> None:
    array = np.arange(6.0)
    origins = [(b"a",), (b"b",), (array,), (array + 1,), (array.reshape(2, 3),), (array.astype("f4"),), (b"a", array)]
    assert len({digest(*origin) for origin in [*origins, (None,)]}) == 8
    assert digest(b"a", b"b") == hashlib.sha256(b"ab").hexdigest()[:32]
    assert digest(array[::2]) == digest(array[::2].copy())


def test_what_was_kept_is_read(folder: Path) -> None:
    assert KEPT.read(KEPT.file(b"1"), load) is None and not folder.exists()
    file = keep(1)
    assert file == KEPT.file(b"1") == folder / f"{digest(b'1')}.safetensors"
    assert KEPT.read(file, load) == 1 and KEPT.read(KEPT.file(b"2"), load) is None and list(folder.iterdir()) == [file]


def test_without_the_variable_it_is_the_home_and_without_a_home_nothing_is_kept(folder: Path, monkeypatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(folder))
    assert KEPT.file(b"1").parent == folder / ".cache" / "powerband" / "numbers"

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert KEPT.file(b"1") is None
    KEPT.write(None, load)
    assert KEPT.read(None, load) is None


def test_what_cannot_be_read_is_none_with_a_warning(folder: Path) -> None:
    file = keep(1)
    file.write_bytes(b"no safetensors at all")
    for name in ("number", "other", "damaged"):  # SafetensorError, KeyError, ValueError
        with pytest.warns(UserWarning, match=r"^kept numbers are counted anew: .*[^.]\.$"):
            assert KEPT.read(file, lambda file, name=name: load(file, name)) is None
        keep(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert KEPT.read(file, load) == 1


def test_what_cannot_be_written_is_a_warning_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    def full(part: Path) -> None:
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    file = keep(1)
    with pytest.warns(UserWarning, match=r"not kept \(No space left on device\).*another folder, or count=false\.$"):
        KEPT.write(file, full)
    assert KEPT.read(file, load) == 1 and list(folder.iterdir()) == [file]
    folder.parent.rename(tmp_path / "away")
    folder.parent.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match=r"numbers are not kept \(.*XDG_CACHE_HOME"):
        assert KEPT.read(keep(1), load) is None


def test_the_files_used_last_stay_and_leftovers_go(folder: Path) -> None:
    files = [keep(number) for number in range(2)]
    for file, ago in zip(files, (30, 20), strict=True):
        os.utime(file, 2 * (time.time() - ago,))
    assert KEPT.read(files[0], load) == 0  # used last now
    for name, ago in (("x.part", 2 * STALE_S), ("now.part", 0), ("theirs.txt", 2 * STALE_S)):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, 2 * (time.time() - ago,))
    newest = keep(2)
    assert set(folder.iterdir()) == {newest, files[0], folder / "now.part", folder / "theirs.txt"}
