"""Free cores: an ended child process must not count as negative work."""

from __future__ import annotations

import subprocess
import sys

from powerband.core.machine import free_cores
from powerband.core.machine.free_cores import FreeCores


def test_free_cores_stay_within_the_quota_when_a_child_has_ended(monkeypatch) -> None:
    monkeypatch.setattr(free_cores, "cores", lambda: 1)
    busy = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    child = subprocess.Popen([sys.executable, "-c", busy])
    try:
        while not free_cores._own().get(child.pid, 0.0) > 0.5:
            pass
        measured = FreeCores()
    finally:
        child.kill()
        child.wait()
    assert 0.0 <= measured.read() <= 1.0
