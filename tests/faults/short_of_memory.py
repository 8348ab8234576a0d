"""The command line with learners that run out of memory above some rows, on one rank: a stand-in for a small GPU.

POWERBAND_TEST_ROWS is "METHOD:ROWS:RANK", such as "update:11:1".
"""

from __future__ import annotations

import os
from typing import Any

import torch

from powerband.algos.ppo import PPO
from powerband.algos.sac import SAC
from powerband.cli import main as cli


def limit(kind: type, method: str, rows: int) -> None:
    """Makes `kind` refuse batches (or observations) of more rows, before it changes anything."""
    own = getattr(kind, method)

    def limited(self: Any, given: Any, *rest: Any, **named: Any) -> Any:
        first = given
        while isinstance(first, dict):
            first = next(iter(first.values()))
        if len(first) > rows:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {len(first)} MiB. GPU 0 has none.")
        return own(self, given, *rest, **named)

    setattr(kind, method, limited)


def main(words: list[str]) -> int:
    """Runs a command of powerband, on the rank of POWERBAND_TEST_ROWS with little memory."""
    method, rows, rank = os.environ["POWERBAND_TEST_ROWS"].split(":")
    if os.environ.get("RANK", "0") == rank:
        for kind in (SAC, PPO):
            limit(kind, method, int(rows))
    return cli.main(words)
