"""A text file is replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerband.core.regular_files import replace_text


def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    replace_text(path, "earlier")

    def full(self: Path, text: str, encoding: str) -> None:
        self.write_bytes(text.encode()[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        replace_text(path, "later, and longer")
    assert path.read_text() == "earlier" and list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "run" / "run.json"
    outside.write_text("untouched")
    path.parent.mkdir()
    for link in (path, path.with_name(".run.json.new")):
        os.symlink(outside, link)
    replace_text(path, "{}")
    assert path.read_text() == "{}" and not path.is_symlink() and outside.read_text() == "untouched"
