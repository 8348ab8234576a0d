"""Journal: what a run says about itself while it trains: banner, first estimate, log lines, trace.

It owns the clock and everything that reads it. `Run` decides when something is due; all ranks call alike.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from powerband import __version__
from powerband.core.config import RunConfig
from powerband.core.machine.device import emulates_bf16, host_facts, simd
from powerband.core.machine.utilisation import Utilisation
from powerband.core.ranks.ranks import Ranks
from powerband.core.schedule import Every
from powerband.core.telemetry.console import Console
from powerband.core.telemetry.idle_causes import causes_of_idleness
from powerband.core.telemetry.metrics import JsonlSink, Metrics, TensorBoardSink
from powerband.core.telemetry.time_left import FirstRate, TimeLeftEstimator
from powerband.core.telemetry.trace import ReusableSpan, Trace, TracedClock


class Journal:
    """Clock, figures and words of one run on one rank; only the leading rank writes.

    Attributes:
        clock: Phase clock of the loop.
        metrics: Accumulators of the interval that is under way.
        console: What a person sees, and ``train.log``.
        logged: (env steps, grad steps) at the end of the last interval.

    Args:
        folder: The run folder.
        settings: Of the run: budgets and cadences.
        ranks: This process among the others.
    """

    def __init__(self, folder: Path, settings: RunConfig, ranks: Ranks) -> None:
        self.folder, self.settings, self.ranks = folder, settings, ranks
        self.clock = TracedClock(ranks.device)
        ranks.span = ReusableSpan(self.clock, "collectives")
        self.pace = TimeLeftEstimator(
            settings.env_steps, settings.time_limit_s, settings.eval_interval, settings.save_interval
        )
        self.console = Console(self.pace, folder / "train.log", enabled=ranks.leads)
        sinks: list[Any] = []
        if ranks.leads:
            sinks = [JsonlSink(folder / "metrics.jsonl")]
            sinks += [TensorBoardSink(folder)] if settings.tensorboard else []
        self.metrics = Metrics(sinks, ranks)
        self.utilisation = Utilisation(ranks.device)
        self.logged = (0, 0)
        self._trace = Trace(folder / "trace.json", self.clock) if ranks.leads else None
        self._first: FirstRate | None = FirstRate() if ranks.leads else None
        self._every = Every(settings.log_interval)
        self._interval_began = time.perf_counter()

    def restart(self, env_steps: int, grad_steps: int) -> None:
        """Starts the clock and the first interval now."""
        self._interval_began = time.perf_counter()
        self.logged = (env_steps, grad_steps)
        self.clock.restart()

    def banner(self, rows: dict[str, str]) -> None:
        """Prints what this run is before its first step: machine, ranks, precision (`rows` may say more of it), then
        `rows`, then the budget."""
        host, settings, rows = host_facts(), self.settings, dict(rows)
        precision = rows.pop("precision", settings.precision)
        gpus = ", ".join(f"{gpu['name']} {gpu['memory_gib']:.0f} GiB" for gpu in host["gpus"])
        own = {
            "run folder": str(self.folder),
            "machine": f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']:.0f} GiB; {gpus or 'no GPU'}",
            "versions": f"powerband {__version__}, torch {host['torch']}, Python {host['python']}",
            "ranks": f"{self.ranks.world_size} on {self.ranks.device.type}, {torch.get_num_threads()} threads each",
            "precision": precision + self._emulated(),
        }
        limit = f" or {settings.time_limit_s:g} s" if settings.time_limit_s else ""
        last = {
            "budget": f"{settings.env_steps:,} env steps{limit} over all ranks",
            "time": "an estimate follows once the rate is measured, a few seconds from here",
        }
        self.console.banner({**own, **rows, **last})

    def _emulated(self) -> str:
        """What there is to say of a precision that this processor has no instructions for."""
        if self.ranks.device.type != "cpu" or self.settings.precision != "bf16":
            return ""
        slow = emulates_bf16(simd(Path("/proc/cpuinfo")))
        return "; this CPU has no bf16 in hardware: precision=fp32 is faster by far" if slow else ""

    def step(self, env_steps: int, grad_steps: int, elapsed_s: float) -> None:
        """Looks at the global counters after an iteration: the first estimate, as soon as a rate was measured."""
        if self._first is not None and self._first.ready(env_steps, grad_steps):
            self.console.estimate(self._first, env_steps, elapsed_s)
            self._first = None

    def trace(self, env_steps: int, grad_steps: int) -> None:
        """Ends an iteration of so many (global) steps in the trace, which lets go once its file is written."""
        if self._trace is not None and self._trace.step(env_steps, grad_steps):
            self._trace = None

    def wants_line(self) -> bool:
        """True where this rank's clock says that a line is due; the ranks agree on it elsewhere."""
        return time.perf_counter() - self._interval_began >= self.settings.log_interval_s

    def line_due(self, env_steps: int, agreed: bool) -> bool:
        """True where a line is due: by steps, or where no interval of steps is set by the `agreed` clocks."""
        return self._every.ready(env_steps) or (agreed and not self.settings.log_interval)

    def write(self, env_steps: int, grad_steps: int, elapsed_s: float) -> dict[str, Any]:
        """Ends the interval: rates, phase shares and the means of what was accumulated, to every sink. A collective.

        Returns:
            The line; empty where the interval has no step.
        """
        now = time.perf_counter()
        seconds = max(now - self._interval_began, 1e-9)
        steps, updates = env_steps - self.logged[0], grad_steps - self.logged[1]
        if steps == 0:
            return {}
        phases = self.clock.read()
        figures = {"charts/SPS": steps / seconds, "charts/updates_per_s": updates / seconds}
        figures["perf/updates_per_env_step"] = updates / steps
        figures |= {f"perf/share/{name}": phases.share(name) for name in phases.host}
        figures |= self.utilisation.read() if self.ranks.leads else {}
        cadence_costs = {name: (phases.host.get(name, 0.0), phases.counts.get(name, 0)) for name in self.pace.intervals}
        self.pace.add(steps, seconds, cadence_costs)
        with self.clock("log"):  # counted in the next interval: this one has just been read
            figures |= causes_of_idleness(phases, self.ranks)
            line = self.metrics.flush(env_steps, grad_steps, figures, time_s=elapsed_s)
            self.console.progress(env_steps, elapsed_s, line)
        self._interval_began, self.logged = now, (env_steps, grad_steps)
        return line

    def finish(self) -> None:
        """Writes the trace where it is not written yet."""
        if self._trace is not None:
            self._trace.write()
            self._trace = None

    def close(self, last_word: str) -> None:
        """Ends the live line with `last_word` and closes the sinks."""
        self.console.close(last_word)
        self.metrics.close()

    def state_dict(self) -> dict:
        """What a resume needs to go on with the interval under way."""
        return {"logged": list(self.logged), "log_every": self._every.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.logged = tuple(state["logged"])
        self._every.load_state_dict(state["log_every"])
