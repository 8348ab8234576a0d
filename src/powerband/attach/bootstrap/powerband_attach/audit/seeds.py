"""Seeds: makes an unseeded script repeatable. A script that sets its own seeds overrides these."""

from __future__ import annotations

import functools
import hashlib
import os
import random
from typing import Any

from powerband_attach.imports import when_imported


def install() -> None:
    """Seeds random, NumPy and torch when they are imported, and the entropy that `secrets` and NumPy ask for."""
    random.seed(0)
    if hasattr(random, "_urandom") and not os.environ.get("POWERBAND_AUDIT_CHILD"):
        random._urandom = _Stream()
    os.environ["POWERBAND_AUDIT_CHILD"] = "1"  # processes of one run must not draw the same names
    when_imported("numpy.random", _seed_numpy)
    when_imported("torch", lambda module: module.manual_seed(0))


class _Stream:
    """The same bytes in each run: SHA-256 of a counter."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, size: int) -> bytes:
        result = b""
        while len(result) < size:
            self.count += 1
            result += hashlib.sha256(b"powerband %d" % self.count).digest()
        return result[:size]


def _seed_numpy(module: Any) -> None:
    module.seed(0)
    original, count = module.default_rng, [0]

    @functools.wraps(original)
    def default_rng(seed: Any = None) -> Any:
        if seed is None:
            count[0] += 1
            seed = count[0]
        return original(seed)

    module.default_rng = default_rng
