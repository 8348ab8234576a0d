"""Journal: writes the banner, the first estimate, the log lines and the trace of a run.

`Journal` owns the phase clock and the objects that read it. `Run` decides when something is due. All ranks make the
same calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from powerband import __version__
from powerband.core.config import RunConfig
from powerband.core.config.texts import counted
from powerband.core.machine.device import host_facts, this_cpu_emulates_bf16
from powerband.core.machine.utilisation import Utilisation
from powerband.core.ranks.ranks import Ranks
from powerband.core.schedule import Every
from powerband.core.telemetry.compilation import compiled_s, running_time
from powerband.core.telemetry.console import Console, duration_text
from powerband.core.telemetry.idle_causes import causes_of_idleness
from powerband.core.telemetry.metrics import JsonlSink, Metrics, TensorBoardSink
from powerband.core.telemetry.time_left import FirstRate, TimeLeftEstimator
from powerband.core.telemetry.trace import ReusableSpan, Trace, TracedClock

TOLD_S = 2.0
"""Seconds of compilation between two log lines from which the run reports them."""


class Journal:
    """Writes the logs of one run: clock, metrics, console and trace of one rank. Only rank 0 writes.

    Attributes:
        clock: Measures the time of the training loop by account (time category such as env).
        metrics: Accumulators of the current log interval.
        console: Output for the user, and ``train.log``.
        logged: (environment steps, updates) over all ranks at the end of the last log interval.
        evaluation_s: Seconds that this rank has spent on evaluations, including those before a resume.

    Args:
        folder: The run folder, which contains the logs.
        settings: Configuration of the run with budgets and intervals.
        ranks: Process group, with the rank and device of this process.
    """

    def __init__(self, folder: Path, settings: RunConfig, ranks: Ranks) -> None:
        self.folder, self.settings, self.ranks = folder, settings, ranks
        self.clock = TracedClock(ranks.device, progress=ranks.progress)
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
        self.evaluation_s = 0.0
        self._trace = Trace(folder / "trace.json", self.clock) if ranks.leads else None
        self._first: FirstRate | None = FirstRate() if ranks.leads else None
        self._every = Every(settings.log_interval)
        self._interval_began, self._told_s = running_time(), compiled_s()

    def restart(self, env_steps: int, grad_steps: int) -> None:
        """Restarts the clock and the current log interval.

        Args:
            env_steps: Environment steps so far, over all ranks.
            grad_steps: Updates so far.
        """
        self._interval_began = running_time()
        self.logged = (env_steps, grad_steps)
        self.clock.restart()

    def banner(self, rows: dict[str, str]) -> None:
        """Prints the start banner: recipe, run folder, machine, ranks and precision, then `rows`, then the budget.

        Args:
            rows: Label -> text of further lines. The entry ``recipe`` comes first, and ``precision`` replaces the line
                of that name.
        """
        host, settings, rows = host_facts(), self.settings, dict(rows)
        precision = rows.pop("precision", settings.precision)
        gpus = ", ".join(f"{gpu['name']} {gpu['memory_gib']:.0f} GiB" for gpu in host["gpus"])
        cores, threads = counted(host["cores"], "core"), counted(torch.get_num_threads(), "thread")
        own = {
            **({"recipe": rows.pop("recipe")} if "recipe" in rows else {}),
            "run folder": str(self.folder),
            "machine": f"{host['cpu']}, {cores}, {host['memory_gib']:.0f} GiB; {gpus or 'no GPU'}",
            "versions": f"powerband {__version__}, torch {host['torch']}, Python {host['python']}",
            "ranks": f"{self.ranks.world_size} on {self.ranks.device.type}, {threads} each",
            "precision": precision + self._emulation_hint(),
        }
        limit = f" or {settings.time_limit_s:g} s" if settings.time_limit_s else ""
        last = {
            "budget": f"{settings.env_steps:,} env steps{limit} over all ranks",
            "time": "an estimate follows after a few seconds, when the rate has been measured",
        }
        self.console.banner({**own, **rows, **last})

    def _emulation_hint(self) -> str:
        """A hint if this processor has no instructions for the precision, otherwise ""."""
        if self.ranks.device.type != "cpu" or self.settings.precision != "bf16":
            return ""
        return "; this CPU emulates bf16, so precision=fp32 is much faster" if this_cpu_emulates_bf16() else ""

    def step(self, env_steps: int, grad_steps: int, elapsed_s: float) -> None:
        """Ends an iteration. Prints the estimated duration of the run once, as soon as a rate has been measured.

        Args:
            env_steps: Environment steps so far, over all ranks.
            grad_steps: Updates so far.
            elapsed_s: Seconds of training so far.
        """
        if self._first is not None and self._first.ready(env_steps, grad_steps):
            self.console.estimate(self._first, env_steps, elapsed_s)
            self._first = None

    def trace(self, env_steps: int, grad_steps: int) -> None:
        """Ends an iteration in the timeline that is recorded for ``trace.json``.

        Args:
            env_steps: Environment steps of this iteration, over all ranks.
            grad_steps: Updates of this iteration.
        """
        if self._trace is not None and self._trace.step(env_steps, grad_steps):
            self._trace = None

    def wants_line(self) -> bool:
        """True if the setting log_interval_s has passed on this rank since the last log line.

        The ranks then agree whether to write a log line.
        """
        return running_time() - self._interval_began >= self.settings.log_interval_s

    def line_due(self, env_steps: int, agreed: bool) -> bool:
        """Returns whether a log line is due.

        If the setting log_interval is above 0, a line is due every log_interval environment steps. If it is 0, a line
        is due when `agreed`.

        Args:
            env_steps: Environment steps so far, over all ranks.
            agreed: True if the ranks have agreed on a line, because `wants_line` was True on at least one of them.
        """
        return self._every.ready(env_steps) or (agreed and not self.settings.log_interval)

    def write(self, env_steps: int, grad_steps: int, elapsed_s: float) -> dict[str, Any]:
        """Ends the log interval and writes its rates, time shares and means to every output. All ranks must call it.

        The metric ``time/training_s`` of the log line is the duration of the run without its evaluations.

        Args:
            env_steps: Environment steps so far, over all ranks.
            grad_steps: Updates so far.
            elapsed_s: Seconds of the run so far, with evaluations.

        Returns:
            The written line, name of a metric -> value; empty if the interval has no steps.
        """
        now = running_time()
        seconds = max(now - self._interval_began, 1e-9)
        steps, updates = env_steps - self.logged[0], grad_steps - self.logged[1]
        if steps == 0:
            return {}
        phases = self.clock.read()
        self._tell_compilation()
        figures = {"time/training_s": elapsed_s - self.evaluation_s}
        figures |= {"charts/SPS": steps / seconds, "charts/updates_per_s": updates / seconds}
        figures["perf/updates_per_env_step"] = updates / steps
        figures |= {f"perf/share/{name}": phases.share(name) for name in phases.host}
        figures |= self.utilisation.read() if self.ranks.leads else {}
        cadence_costs = {name: (phases.host.get(name, 0.0), phases.counts.get(name, 0)) for name in self.pace.intervals}
        self.pace.add(steps, seconds, cadence_costs, updates)
        with self.clock("log"):  # belongs to the next interval, because this one has been read
            figures |= causes_of_idleness(phases, self.ranks)
            line = self.metrics.flush(env_steps, grad_steps, figures, time_s=elapsed_s)
            self.console.progress(env_steps, elapsed_s, line)
        self._interval_began, self.logged = now, (env_steps, grad_steps)
        return line

    def _tell_compilation(self) -> None:
        """Prints how long functions were compiled since the last call, if it was long."""
        seconds = compiled_s() - self._told_s
        self._told_s += seconds
        if seconds >= TOLD_S:
            self.console.note(f"compilation took {duration_text(seconds)}, which does not count as training")

    def finish(self) -> None:
        """Writes ``trace.json`` if it has not been written yet."""
        if self._trace is not None:
            self._trace.write()
            self._trace = None

    def close(self, message: str) -> None:
        """Ends the live progress line, prints `message` and closes all outputs."""
        self.console.close(message)
        self.metrics.close()

    def state_dict(self) -> dict:
        """State with which a resumed run continues the current log interval."""
        return {
            "logged": list(self.logged),
            "interval_s": running_time() - self._interval_began,
            "log_every": self._every.state_dict(),
            "evaluation_s": self.evaluation_s,
        }

    def load_state_dict(self, state: dict) -> None:
        self.logged = tuple(state["logged"])
        self._every.load_state_dict(state["log_every"])
        # Checkpoints of earlier versions contain neither number of seconds.
        self._interval_began = running_time() - state.get("interval_s", 0.0)
        self.evaluation_s = state.get("evaluation_s", 0.0)
