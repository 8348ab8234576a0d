"""Choice: whether SAC, TD3 or DQN computes in compiled functions or with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from powerband.core.rank_context import RankContext
from powerband.nets.observations.encoders import ObsEncoder

WIDTH, WIDTH_OF_SEVERAL_THREADS = 512, 256
"""Units of a hidden layer up to which compiled functions are faster than PyTorch with one thread, and with two.

The compiled functions have one thread (``sac_widths.json``, ``sac_threads.json``).
"""


def is_fusible(context: RankContext, hidden: Sequence[int], encoder: ObsEncoder | None) -> bool:
    """Returns whether compiled functions support a learner with these `hidden` layers, and are faster than PyTorch."""
    widest = WIDTH if torch.get_num_threads() == 1 else WIDTH_OF_SEVERAL_THREADS
    plain = context.device.type == "cpu" and context.precision.name == "fp32" and encoder is None
    return plain and max(hidden, default=0) <= widest
