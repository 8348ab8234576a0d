"""Instrumentation of a script: standard library only, Python 3.9 to 3.13, one sub-package per tool.

The environment variable ``POWERBAND_ATTACH`` names the sub-package whose `begin` runs in each process: ``profile``,
``audit`` or ``trial``. Each process writes a file of JSON lines into the folder ``POWERBAND_ATTACH_DIR``. An error of
the instrumentation is recorded there and never reaches the script.
"""

from __future__ import annotations

import importlib
import os

from powerband_attach import process, ranks, record
from powerband_attach.safely import safely

TOOLS = ("profile", "audit", "trial")
"""Sub-packages that ``POWERBAND_ATTACH`` may name. Each has a function ``begin()``."""


@safely
def start() -> None:
    """Begins the record of this process and starts the tool that ``POWERBAND_ATTACH`` names."""
    tool = os.environ.get("POWERBAND_ATTACH", "")
    if tool not in TOOLS or not os.environ.get("POWERBAND_ATTACH_DIR"):
        return
    record.begin("start")
    process.watch()
    ranks.watch()
    importlib.import_module("powerband_attach." + tool).begin()
