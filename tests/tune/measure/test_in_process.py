"""Measurements in this process leave it as it was for functions that numba compiles afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
from powerband.cli import main as cli
assert "numba" not in sys.modules
assert cli.main(["profile", "snakes", "variant=smoke", "gpus=none", "threads=1", "seconds=1"]) == 0
import numba
from numba.np.ufunc import parallel
assert parallel._is_initialized, "the test is without effect: the run has not started numba's threads"
print(numba.njit(lambda x: x + 1)(41))
"""


def test_numba_compiles_after_a_measurement_that_has_started_its_threads() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "42"
