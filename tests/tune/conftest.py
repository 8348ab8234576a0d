from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from powerband.core.config import ranges
from powerband.tune.score import options as score
from powerband.tune.search import options as search


def _forget() -> None:
    """Types are resolved once, and a range keeps the limits of that time."""
    for cached in (ranges.kinds_of, ranges._ranged, ranges._declared):
        cached.cache_clear()


@pytest.fixture
def short_budgets() -> Iterator[None]:
    """Lets ``powerband tune`` search for less than its shortest budget."""
    with mock.patch.object(search, "MIN_WINDOW_S", 0.5), mock.patch.object(score, "MIN_SECONDS", 5.0):
        _forget()
        yield
    _forget()
