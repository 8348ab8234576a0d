"""TUNED: hyper-parameters per task and algorithm. They were found on other seeds than those of the published results.

``hyper=tuned`` uses an entry before every other source of settings. The evidence of each entry is in
``benchmarks/results/tuned``.
"""

from __future__ import annotations

from typing import Any

TUNED: dict[tuple[str, str], dict[str, Any]] = {}
"""(Gymnasium id, algorithm) -> settings by qualified name."""
