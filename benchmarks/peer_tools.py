"""How each tool is told the parts of `faulty_loop.py`: powerband, TraceML and Fournex, used as their authors mean."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from powerband.tune.ledger import Ledger


class Untimed:
    """No tool: the loop as it is."""

    def start(self, device: torch.device) -> None: ...

    def batches(self, source: Any) -> Any:
        return iter(source)

    def step(self, step: int, agent: nn.Module, batch: Any) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def phase(self, name: str, step: int = 0) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def finish(self, update: Callable[[Any], None], batch: Any) -> None:
        """Is handed one update of the loop, and a batch for it, once the loop is over."""

    def verdict(self) -> dict[str, Any]:
        return {}


class Powerband(Untimed):
    """A span for each part, and one update with a batch at the end, as in `examples/diagnose_your_own_loop.py`."""

    def start(self, device: torch.device) -> None:
        from powerband import PhaseClock

        self.clock = PhaseClock(device)

    def phase(self, name: str, step: int = 0) -> contextlib.AbstractContextManager:
        return self.clock("update" if name == "read" else name)

    def finish(self, update: Callable[[Any], None], batch: Any) -> None:
        self.ledger = Ledger.of(self.clock.whole())
        self.own = {"update": update, "batch": batch}

    def verdict(self) -> dict[str, Any]:
        from powerband import diagnose

        found = diagnose(self.ledger, **self.own)
        labels = [each.cause for each in found.findings] or [found.cause]
        ledger = {name: round(found.ledger.share(name), 3) for name in found.ledger.seconds}
        return {"labels": labels, "words": f"{found.cause}: {found.sentence}", "seen": ledger}


class TraceML(Untimed):
    """Automatic timing of forward, backward, optimiser and loader; the step is the whole iteration after its batch,
    so that environments and the rest are at least in its residual. Sampling replay is timed as input."""

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
    """Phases for what it knows, instrumented batches, copies, and `sync_wait` where figures are read."""

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
        # `next` of the instrumented batches is timed by itself; what it has no name for is a phase all the same.
        return contextlib.nullcontext() if name in ("sample", "data") else self.fournex.phase(name, step=step)

    @contextlib.contextmanager
    def _sync_wait(self, step: int) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        spent = time.perf_counter_ns() - start
        event = self.fournex.build_runtime_event(event_type="sync_wait", step_id=step, duration_ns=spent)
        self.fournex.emit_event(event)


TOOLS = {"none": Untimed, "powerband": Powerband, "TraceML": TraceML, "Fournex": Fournex}
