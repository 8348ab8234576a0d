"""Tests that measure seconds have the machine to themselves: they are marked `timed`, and run after all others.

MuJoCo decides what it renders with when it is imported, whichever test does so first: that is settled before all tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from powerband.core import rendering

HERE = Path(__file__).parent
TIMED = (
    "bench",
    "core/test_pace.py",
    "core/test_phases.py",
    "core/test_trace.py",
    "core/test_utilisation.py",
    "doctor",
    "envs/test_supervised.py",
    "envs/test_vector.py",
    "learning",
    "loops/test_spans.py",
    "report",
    "tune",
)
"""Folders and files under tests/."""


def pytest_configure() -> None:
    rendering.prepare()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        where = item.path.relative_to(HERE)
        if any(part in TIMED for part in (str(where), where.parts[0])):
            item.add_marker(pytest.mark.timed)
