"""TUNED: hyper-parameters per task and algorithm. They were found on other seeds than those of the published results.

``hyper=tuned`` uses an entry before every other source of settings. The evidence of each entry is in
``benchmarks/results/tuned``.
"""

from __future__ import annotations

from typing import Any

TUNED: dict[tuple[str, str], dict[str, Any]] = {
    # Return after 300,000 steps, seed 100: 2,565, and 1,163 with the general settings.
    ("HalfCheetah-v5", "ppo"): {"ppo.normalize_obs": True, "ppo.log_std": -0.5},
}
"""(Gymnasium id, algorithm) -> settings by qualified name."""
