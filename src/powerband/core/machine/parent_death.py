"""Parent death: lets the kernel signal this process when its parent ends, so that it does not become an orphan."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl that sets the signal which a process receives when its parent dies."""


def signal_at_parent_death(number: signal.Signals) -> None:
    """Makes the kernel send `number` to this process when the thread that started it ends; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
