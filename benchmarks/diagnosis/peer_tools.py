"""Adapters of powerband, TraceML and Fournex for `faulty_loop.py`; each follows the documentation of its tool."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from powerband.tune.measure.ledger import Ledger


class Untimed:
    """Adapter without a tool, and base class of the other adapters."""

    def start(self, device: torch.device) -> None:
        """Starts the measurement."""

    def batches(self, source: Any) -> Any:
        """Returns an iterator over batches, instrumented if the tool supports it."""
        return iter(source)

    def step(self, step: int, agent: nn.Module, batch: Any) -> contextlib.AbstractContextManager:
        """Returns the context of one iteration after its batch."""
        return contextlib.nullcontext()

    def phase(self, name: str, step: int = 0) -> contextlib.AbstractContextManager:
        """Returns the context of one part of an iteration."""
        return contextlib.nullcontext()

    def finish(self, update: Callable[[Any], None], batch: Any) -> None:
        """Ends the measurement; `update` makes one update of the loop with a batch."""

    def verdict(self) -> dict[str, Any]:
        """Returns labels, text and evidence of the tool; empty if the tool reports outside of this process."""
        return {}


class Powerband(Untimed):
    """Uses one span per part and one update with a batch at the end, as `examples/diagnose_your_own_loop.py` does."""

    def start(self, device: torch.device) -> None:
        from powerband import PhaseClock

        self.clock = PhaseClock(device)

    def phase(self, name: str, step: int = 0) -> contextlib.AbstractContextManager:
        return self.clock("update" if name == "read" else name)

    def finish(self, update: Callable[[Any], None], batch: Any) -> None:
        self.ledger = Ledger.from_phases(self.clock.read_total())
        self.update = {"update": update, "batch": batch}

    def verdict(self) -> dict[str, Any]:
        from powerband import diagnose

        diagnosis = diagnose(self.ledger, **self.update)
        labels = [each.cause for each in diagnosis.findings] or [diagnosis.cause]
        ledger = {name: round(diagnosis.ledger.share(name), 3) for name in diagnosis.ledger.seconds}
        return {"labels": labels, "words": f"{diagnosis.cause}: {diagnosis.sentence}", "seen": ledger}


class TraceML(Untimed):
    """Measures forward, backward, optimiser and loader automatically; a step is the complete iteration after its batch.

    The residual of a step includes environments and all other parts. Sampling the replay buffer is measured as input.
    """

    def start(self, device: torch.device) -> None:
        import traceml_ai

        self.traceml = traceml_ai
        traceml_ai.init(mode="auto")

    def batches(self, source: Any) -> Any:
        if isinstance(source, torch.utils.data.DataLoader):
            return iter(source)
        return iter(self.traceml.wrap_dataloader_fetch(source))

    def step(self, step: int, agent: nn.Module, batch: Any) -> contextlib.AbstractContextManager:
        return self.traceml.trace_step(agent)


class Fournex(Untimed):
    """Uses phases, instrumented batches and copies, and an event `sync_wait` if the loop reads losses."""

    def start(self, device: torch.device) -> None:
        import fournex

        self.fournex = fournex
        fournex.init()

    def batches(self, source: Any) -> Any:
        return iter(self.fournex.instrument_dataloader(source))

    def step(self, step: int, agent: nn.Module, batch: Any) -> contextlib.AbstractContextManager:
        return self.fournex.step_context(step, batch, model=agent)

    def phase(self, name: str, step: int = 0) -> contextlib.AbstractContextManager:
        if name == "h2d":
            return self.fournex.time_memcpy(copy_kind="h2d", step=step)
        if name == "read":
            return self._sync_wait(step)
        # The instrumented iterator already measures `next`. Fournex accepts phases with unknown names.
        return contextlib.nullcontext() if name in ("sample", "data") else self.fournex.phase(name, step=step)

    @contextlib.contextmanager
    def _sync_wait(self, step: int) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        spent = time.perf_counter_ns() - start
        event = self.fournex.build_runtime_event(event_type="sync_wait", step_id=step, duration_ns=spent)
        self.fournex.emit_event(event)


TOOLS = {"none": Untimed, "powerband": Powerband, "TraceML": TraceML, "Fournex": Fournex}
