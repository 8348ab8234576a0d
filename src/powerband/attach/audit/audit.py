"""Audit of a script: the order of its short runs, the budget, and the verdicts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from powerband.attach.audit.comparison import total
from powerband.attach.audit.options import AuditOptions, ScriptOption, options_of
from powerband.attach.audit.short_run import Limits, ShortRun, run_short
from powerband.attach.audit.source_scan import SourceScan
from powerband.attach.audit.texts import Wording
from powerband.attach.audit.values import values_to_try
from powerband.attach.audit.verdict import Evidence, Verdict, judge
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
        self.began, self.runs = time.monotonic(), 0
        self.evidence: dict[str, Evidence] = {}
        self._lock = threading.Lock()
        self._limits = Limits(window_s=options.window, most_s=options.window + FIRST_RUN_S)

    def run(self) -> AuditResult | ScriptFailed:
        """Runs the audit. Ctrl-C ends it early, with the verdicts that are known.

        Raises:
            ConfigError: The folder is too large, the script has no options, or it writes outside its folder.
        """
        copied_bytes(self.folder)
        self.progress("unchanged run", 0.0)
        first = self._short({})
        if first.failed:
            return ScriptFailed(first.console, first.status or 1)
        if first.outside:
            raise ConfigError(
                f"The script was stopped before it wrote {first.outside}, which is outside the working folder. "
                f"Set its output to a relative path, because each short run works in a copy of the folder."
            )
        found = self._selected(options_of(first))
        counts = {"updates": total(first, "updates"), "env_steps": total(first, "env_steps")}
        self._limits = self._limits_from(first)
        complete = False
        with contextlib.suppress(KeyboardInterrupt):
            with ThreadPoolExecutor(self.options.parallel) as pool:
                pair = list(pool.map(self._short, [{}, {}]))
            baseline = (pair[0], pair[1])
            for option in found:
                self.evidence[option.id] = Evidence(option, baseline, self.scan, self.gpu, self.say)
            complete = self._change_all(found, counts["updates"])
        verdicts = [self._verdict(option) for option in found]
        notes = {**counts, "stopped": first.stopped, "seconds_per_run": round(first.seconds, 2)}
        seconds = time.monotonic() - self.began
        return AuditResult(self.command, verdicts, round(seconds, 1), self.runs, complete, notes)

    def _selected(self, found: list[ScriptOption]) -> list[ScriptOption]:
        names = [name.strip() for name in self.options.options.split(",") if name.strip()]
        known = {option.name for option in found} | {option.last_name for option in found}
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"The script has no option {unknown[0]!r}. Its options: {', '.join(sorted(known))}.")
        if not found:
            raise ConfigError(
                "No option was found. audit sees argparse, OmegaConf and Hydra, YAML and JSON files, dataclass parsers "
                "(tyro, HfArgumentParser, draccus), absl flags and gin, in the script's own code."
            )
        return [option for option in found if not names or option.name in names or option.last_name in names]

    def _limits_from(self, first: ShortRun) -> Limits:
        """All later runs end at the counts that the first one has reached."""
        most = 3 * first.seconds + 15
        if not first.stopped:
            return Limits(most_s=most)
        updates, steps = (max(record_count(first, name)) for name in ("updates", "env_steps"))
        return Limits(updates, int(steps * (1.5 if updates else 1)) + (50 if updates else 0), 0.0, most)

    def _change_all(self, found: list[ScriptOption], updates: int) -> bool:
        """Runs the script with changed options. Returns False if the budget has ended before."""
        values = {o.id: values_to_try(o, self.scan.alternatives(o), updates) for o in found}
        silent = {o.id: values[o.id].pop(0) for o in found if o.never_read and values[o.id]}
        if silent:  # one run with all of them changed: if it differs in nothing, none of them has an effect
            self.progress("options that nobody reads", self._share())
            together = self._short(dict(silent))
            evidence = [self.evidence[key] for key in silent]
            if together.failed or any(one.found(silent[one.option.id], together) for one in evidence):
                for key, value in silent.items():
                    values[key].insert(0, value)
            else:
                for one in evidence:
                    one.runs.append((silent[one.option.id], together))
                    values[one.option.id] = []
        return self._rounds(found, values)

    def _rounds(self, found: list[ScriptOption], values: dict[str, list[Any]]) -> bool:
        """Tries the next value of each undecided option, first values of all options first."""
        waiting = [option for option in found if values[option.id]]
        running: dict[Future[ShortRun], tuple[ScriptOption, Any]] = {}
        longest = 0.0
        pool = ThreadPoolExecutor(self.options.parallel)
        try:
            while waiting or running:
                in_time = self.options.seconds - (time.monotonic() - self.began) > longest
                while waiting and in_time and len(running) < self.options.parallel:
                    option = waiting.pop(0)
                    value = values[option.id].pop(0)
                    running[pool.submit(self._short, {option.id: value})] = (option, value)
                if not running:
                    return False
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    option, value = running.pop(future)
                    run, evidence = future.result(), self.evidence[option.id]
                    longest = max(longest, run.seconds)
                    evidence.runs.append((value, run))
                    if not evidence.decided() and values[option.id]:
                        waiting.append(option)
                    self.progress(f"{option.name}: {len(waiting) + len(running)} options left", self._share())
            return True
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _verdict(self, option: ScriptOption) -> Verdict:
        evidence = self.evidence.get(option.id)
        if evidence is None or not evidence.runs:
            values = values_to_try(option, self.scan.alternatives(option), 1)
            name = "no_value" if not values else "not_reached"
            text = self.say(name, value=option.value, read="")
            return Verdict(option.name, "unknown", text, option.value, [], option.where, option.reads)
        return judge(evidence)

    def _short(self, changes: dict[str, Any]) -> ShortRun:
        with self._lock:
            self.runs += 1
        return run_short(self.command, self.folder, changes, self._limits)

    def _share(self) -> float:
        return min(1.0, (time.monotonic() - self.began) / self.options.seconds)


def record_count(run: ShortRun, name: str) -> list[int]:
    """Returns a count of each process of a run."""
    from powerband.attach.audit.comparison import facts_of

    return [facts_of(record).get("counts", {}).get(name, 0) for record in run.records] or [0]
