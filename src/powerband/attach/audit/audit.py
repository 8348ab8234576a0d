"""Audit of a script: the order of its short runs, the budget, and the verdicts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from powerband.attach.audit.comparison import differences, facts_of, total
from powerband.attach.audit.options import AuditOptions, ScriptOption, options_of
from powerband.attach.audit.short_run import Limits, ShortRun, run_short
from powerband.attach.audit.source_scan import SourceScan
from powerband.attach.audit.texts import Wording
from powerband.attach.audit.values import values_to_try
from powerband.attach.audit.verdict import Evidence, Verdict, judge, texts_of
from powerband.attach.audit.working_copy import copied_bytes
from powerband.core.errors import ConfigError

FIRST_RUN_S = 120.0
"""Longest first run in seconds, apart from the window."""


@dataclass(frozen=True)
class ScriptFailed:
    """The script ends with an error by itself.

    Attributes:
        console: Its output.
        status: Its exit status.
    """

    console: str
    status: int


@dataclass(frozen=True)
class AuditResult:
    """Verdicts about the options of a script.

    Attributes:
        command: Command line of the script.
        options: One verdict per option.
        seconds: Wall time of the audit.
        runs: Number of short runs.
        complete: Whether all options were reached.
        notes: Facts about the runs, such as the counts at which they end.
    """

    command: list[str]
    options: list[Verdict]
    seconds: float
    runs: int
    complete: bool
    notes: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return asdict(self)


class Audit:
    """Audits one script.

    Args:
        command: Command line of the script.
        folder: Working folder.
        options: Options of the audit.
        gpu: Whether this machine has a GPU.
        progress: Function of a text and the spent share of the budget.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        options: AuditOptions,
        gpu: bool,
        progress: Callable[[str, float], None],
    ) -> None:
        self.command, self.folder, self.options, self.gpu, self.progress = list(command), folder, options, gpu, progress
        self.say, self.scan = Wording(options.lang), SourceScan(folder)
        self.began, self.runs, self.longest = time.monotonic(), 0, 0.0
        self.evidence: dict[str, Evidence] = {}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._limits = Limits(window_s=options.window, most_s=options.window + FIRST_RUN_S)

    def run(self) -> AuditResult | ScriptFailed:
        """Runs the audit. Ctrl-C or a signal (`Interrupted`) ends it early, with the verdicts that are known.

        Raises:
            ConfigError: The folder is too large, the script has no options, or it writes outside its folder.
        """
        copied_bytes(self.folder)
        self.progress("unchanged run", 0.0)
        first = self._short({})
        self.longest = first.seconds
        if failed := _failure_of(first):
            return failed
        if first.timed_out:
            updates, steps = total(first, "updates"), total(first, "env_steps")
            raise ConfigError(
                f"The script did not end in {first.seconds:.0f} s. audit ends a run at a number of optimiser steps or "
                f"environment steps, and it counted {updates} and {steps}. It sees optimisers of torch.optim, and "
                f"environment classes with step and reset. Let any other script end by itself in less than "
                f"{FIRST_RUN_S:.0f} s."
            )
        found = self._selected(options_of(first))
        counts = {"updates": total(first, "updates"), "env_steps": total(first, "env_steps")}
        self._limits = self._limits_from(first)
        complete = False
        with contextlib.suppress(KeyboardInterrupt):
            baseline = self._baseline()
            if isinstance(baseline, ScriptFailed):
                return baseline
            if baseline is not None:
                for option in found:
                    self.evidence[option.id] = Evidence(option, baseline, self.scan, self.gpu, self.say)
                complete = self._change_all(found, counts["updates"])
        verdicts = [self._verdict(option) for option in found]
        notes = {**counts, "stopped": first.stopped, "seconds_per_run": round(first.seconds, 2)}
        seconds = time.monotonic() - self.began
        return AuditResult(self.command, verdicts, round(seconds, 1), self.runs, complete, notes)

    def _baseline(self) -> tuple[ShortRun, ShortRun] | ScriptFailed | None:
        """Makes two unchanged runs; None if the budget ends before.

        Runs at the same time may disturb each other, such as by a fixed port. If one of them has no usable end, both
        are repeated one after the other, and so are all later runs.

        Raises:
            ConfigError: An unchanged run writes outside its folder, or takes too long, even if it runs alone.
        """
        for parallel in (self.options.parallel, 1):
            if not self._in_time(1 if parallel > 1 else 2):
                return None
            with self._pool(parallel) as pool:
                first, second = pool.map(self._short, [{}, {}])
            self.longest = max(self.longest, first.seconds, second.seconds)
            broken = next((run for run in (first, second) if run.failed or run.outside or run.timed_out), None)
            if broken is None:
                return first, second
            self.options = replace(self.options, parallel=1)
        assert broken is not None
        if failed := _failure_of(broken):
            return failed
        raise ConfigError(
            f"An unchanged run did not reach the counts of the first one in {broken.seconds:.0f} s. "
            f"Give the script a machine without other work, or a smaller window."
        )

    def _selected(self, found: list[ScriptOption]) -> list[ScriptOption]:
        if not found:
            raise ConfigError(
                "No option was found. audit sees argparse, OmegaConf and Hydra, YAML and JSON files, dataclass parsers "
                "(tyro, HfArgumentParser, draccus), absl flags and gin, in the script's own code."
            )
        names = [name.strip() for name in self.options.options.split(",") if name.strip()]
        known = {option.name for option in found} | {option.last_name for option in found}
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"The script has no option {unknown[0]!r}. Its options: {', '.join(sorted(known))}.")
        return [option for option in found if not names or option.name in names or option.last_name in names]

    def _limits_from(self, first: ShortRun) -> Limits:
        """All later runs end at the counts that the first one has reached."""
        most = 5 * first.seconds + 30
        if not first.stopped:
            return Limits(most_s=most)
        updates, steps = (max(record_count(first, name)) for name in ("updates", "env_steps"))
        return Limits(updates, int(steps * (1.5 if updates else 1)) + (50 if updates else 0), 0.0, most)

    def _change_all(self, found: list[ScriptOption], updates: int) -> bool:
        """Runs the script with changed options. Returns False if the budget has ended before."""
        values = {o.id: values_to_try(o, self.scan.alternatives(o), updates) for o in found}
        for option in found:
            self.evidence[option.id].left = values[option.id]
        silent = [o for o in found if o.never_read and values[o.id]]
        if silent and self._in_time() and self._together(silent, values):
            for option in silent:
                values[option.id].clear()
        self._alone(found, values)
        while self._in_time():
            left = [o for o in found if values[o.id] and self.evidence[o.id].effective() is None]
            if not left:
                return True
            if len(left) == 1 or not self._together(left, values):
                self._alone(left, values)
        return False

    def _together(self, found: list[ScriptOption], values: dict[str, list[Any]]) -> bool:
        """Runs the script once with the next value of several options.

        Returns:
            True if the run differs in nothing. Then none of these values has an effect, and they are done.
        """
        self.progress(f"{len(found)} options together", self._share())
        changes = {option.id: values[option.id][0] for option in found}
        run = self._short(changes)
        self.longest = max(self.longest, run.seconds)
        hidden = [text for o in found for text in texts_of(o.value, changes[o.id])]
        if run.failed or run.outside or run.timed_out or differences(self.evidence[found[0].id].baseline, run, hidden):
            return False
        for option in found:
            self.evidence[option.id].add(changes[option.id], run, found=[])
            values[option.id].pop(0)
        return True

    def _in_time(self, runs: int = 1) -> bool:
        """Whether `runs` more runs, one after another, fit into the budget, if they take as long as the longest one."""
        return self.options.seconds - (time.monotonic() - self.began) > runs * self.longest

    def _alone(self, found: list[ScriptOption], values: dict[str, list[Any]]) -> None:
        """Tries the next value of each option, one option per run.

        A value whose run does not finish, such as after Ctrl-C, stays among the values that were not tried.
        """
        waiting = [option for option in found if values[option.id]]
        running: dict[Future[ShortRun], tuple[ScriptOption, Any]] = {}
        with self._pool(self.options.parallel) as pool:
            while waiting or running:
                while waiting and self._in_time() and len(running) < self.options.parallel:
                    option = waiting.pop(0)
                    value = values[option.id][0]
                    running[pool.submit(self._short, {option.id: value})] = (option, value)
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    option, value = running[future]
                    run = future.result()
                    self.longest = max(self.longest, run.seconds)
                    self.evidence[option.id].add(value, run)
                    values[option.id].pop(0)
                    del running[future]
                    self.progress(f"{option.name}: {len(waiting) + len(running)} runs left", self._share())

    @contextlib.contextmanager
    def _pool(self, parallel: int) -> Iterator[ThreadPoolExecutor]:
        """Context with threads for short runs. An exception, such as Ctrl-C, ends their runs."""
        pool = ThreadPoolExecutor(parallel)
        try:
            yield pool
        except BaseException:
            self._stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _verdict(self, option: ScriptOption) -> Verdict:
        evidence = self.evidence.get(option.id)
        if evidence is None or not evidence.trials:
            values = values_to_try(option, self.scan.alternatives(option), 1)
            name = "no_value" if not values else "not_reached"
            text = self.say(name, value=option.value, read="")
            return Verdict(option.name, "unknown", text, option.value, [], option.where, option.reads)
        return judge(evidence)

    def _short(self, changes: dict[str, Any]) -> ShortRun:
        with self._lock:
            self.runs += 1
        return run_short(self.command, self.folder, changes, self._limits, self._stop)

    def _share(self) -> float:
        return min(1.0, (time.monotonic() - self.began) / self.options.seconds)


def _failure_of(run: ShortRun) -> ScriptFailed | None:
    """Returns the error of a script that fails by itself; None if it does not fail.

    A worker that was stopped before a write can make the script fail, so such a write comes first.

    Raises:
        ConfigError: The script was stopped before a write outside its folder.
    """
    if run.outside:
        raise ConfigError(
            f"The script was stopped before it wrote {run.outside}, which is outside the working folder. "
            f"Set its output to a relative path, because each short run works in a copy of the folder."
        )
    return ScriptFailed(run.output, run.status or 1) if run.failed else None


def record_count(run: ShortRun, name: str) -> list[int]:
    """Returns a count of each process of a run."""
    return [facts_of(record).get("counts", {}).get(name, 0) for record in run.records] or [0]
