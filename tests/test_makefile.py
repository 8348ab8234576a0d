"""`make setup` installs rendering libraries where it may, else says what to run, and never fails over it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
LINE = "run: sudo apt-get install -y libegl1 libgl1 libosmesa6"


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize("user", ["0", "1000"])
def test_root_alone_runs_apt_get_and_missing_libraries_are_named(tmp_path: Path, user: str) -> None:
    """Files that are no libraries stand for missing ones. A fake apt-get records its arguments and fails."""
    for name in ("libEGL.so.1", "libGL.so.1"):
        (tmp_path / name).write_text("no library")
    for name, text in {"apt-get": f"echo $* >> {tmp_path}/asked; exit 1", "id": f"echo {user}"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "try.mk").write_text(f"include {MAKEFILE}\ntry:\n\t@$(call rendering)\n")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(tmp_path)}
    command = ["make", "-s", "-f", "try.mk", "try", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert LINE in done.stdout and done.stdout.count("\n") == 1
    apt_arguments = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert ("install -y -qq libosmesa6" in apt_arguments) == (user == "0")
