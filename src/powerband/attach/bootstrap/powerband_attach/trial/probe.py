"""Probe: alternates changes within one run, in short blocks of updates. Its rates predict the gains of whole runs."""

from __future__ import annotations

import sys
import time
from typing import Any

from powerband_attach import record
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely
from powerband_attach.trial import end, optimisers, precision, settings

BLOCK_S, BLOCK_UPDATES = 0.25, 4
"""Shortest block, in seconds and in updates. A block ends when it has both."""
FIRST_UPDATES = 10
"""Updates before the first block."""


def install() -> None:
    """Starts to alternate when the first optimiser steps, if this run is a probe."""
    variants = settings.get("probe", [])
    if variants:
        blocks = _Blocks([{}, *variants], int(settings.get("cycles", 5)))
        when_imported(
            "torch.optim.optimizer", lambda module: module.register_optimizer_step_post_hook(blocks.after_step)
        )


class _Blocks:
    """Blocks of updates, each with one variant.

    Args:
        variants: Changes; the first one is empty and stands for the unchanged script.
        cycles: Number of blocks per variant.
    """

    def __init__(self, variants: list[dict[str, Any]], cycles: int) -> None:
        self.variants, self.cycles = variants, cycles
        self.block = -1
        self.updates = 0
        self.began = 0.0
        self.key: Any = None
        self.optimizers: dict[int, Any] = {}
        self.found: dict[str, Any] = {}

    @safely
    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Counts an update of the first optimiser; the other ones step as often or less."""
        self.optimizers[id(optimizer)] = optimizer
        self.key = self.key or id(optimizer)
        if id(optimizer) != self.key:
            return
        self.updates += 1
        now = time.perf_counter()
        if self.block < 0:
            if self.updates >= FIRST_UPDATES:
                self._next(now)
        elif self.updates == 1:  # the first update after the change is not counted
            self.began = now
        elif now - self.began >= BLOCK_S and self.updates > BLOCK_UPDATES:
            record.write(
                "probe", variant=self.block % len(self.variants), updates=self.updates - 1, seconds=now - self.began
            )
            self._next(now)

    def _next(self, now: float) -> None:
        self.block += 1
        if self.block >= self.cycles * len(self.variants):
            end.finish()
        self._undo()
        for name, value in self.variants[self.block % len(self.variants)].items():
            self._apply(name, value)
        self.updates, self.began = 0, now

    def _apply(self, name: str, value: Any) -> None:
        torch = sys.modules["torch"]
        if name == "threads":
            self.found.setdefault("threads", torch.get_num_threads())
            torch.set_num_threads(value)
        elif name == "tf32":
            cudnn = torch.backends.cudnn
            self.found.setdefault("tf32", (torch.get_float32_matmul_precision(), cudnn.allow_tf32))
            precision.set_tf32(torch, True)
        elif name == "autocast":
            precision.autocast[0] = True
        elif name == "optimizer":
            self._set_groups(value)

    def _undo(self) -> None:
        torch = sys.modules["torch"]
        if "threads" in self.found:
            torch.set_num_threads(self.found["threads"])
        if "tf32" in self.found:
            matmul, convolutions = self.found["tf32"]
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = convolutions
        precision.autocast[0] = False
        self._set_groups("")

    def _set_groups(self, name: str) -> None:
        """Sets the implementation of all optimisers; "" restores their own one."""
        for key, optimizer in self.optimizers.items():
            for index, group in enumerate(optimizer.param_groups):
                if "foreach" not in group:
                    continue
                own = self.found.setdefault(
                    f"{key} {index}", {each: group[each] for each in ("foreach", "fused") if each in group}
                )
                values = optimisers.implementation(name) if name and name in group else own
                group.update({each: value for each, value in values.items() if each in own})
