"""Script trial: the first profile of a script, the plausible changes, and their trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from powerband.attach.audit.working_copy import copied_bytes
from powerband.attach.findings import ScriptProfile, script_profile
from powerband.attach.processes.script_run import ScriptOptions
from powerband.attach.trial.observed import observed
from powerband.attach.trial.plausible import plausible_changes
from powerband.attach.trial.trial_run import first_run
from powerband.attach.trial.trials import Progress, Trials
from powerband.attach.trial.tried import TriedChanges
from powerband.attach.trial.work import choose_work
from powerband.core.machine.device import cores

Bar = Callable[[float], AbstractContextManager[Progress]]
"""Context with a progress bar, from the seconds of the budget."""


def try_script(
    command: Sequence[str], options: ScriptOptions, progress_bar: Bar, show: Callable[[str], None]
) -> tuple[ScriptProfile | None, int]:
    """Profiles a script, and tries the plausible changes. All runs work in copies of the working folder.

    Args:
        command: Command line of the user.
        options: Options of the command.
        progress_bar: Shows progress.
        show: Prints the first profile before the trials.

    Returns:
        (profile with the tried changes, or None if nothing was measured; exit status).

    Raises:
        ConfigError: The folder is too large to copy, the command cannot be started, or it writes outside its folder.
    """
    source = Path.cwd()
    copied_bytes(source)
    run = first_run(command, source, options)
    profile = script_profile(command, run)
    if profile is None or run.status:
        return profile, run.status
    show(str(profile))
    tried = _tried(command, source, options, profile, progress_bar)
    return dataclasses.replace(profile, tried=tried), 0


def _tried(
    command: Sequence[str], source: Path, options: ScriptOptions, profile: ScriptProfile, progress_bar: Bar
) -> TriedChanges:
    run, leader = profile.run, profile.ranks[0]
    work = choose_work(run.records, run.start_ns * 1e-9, options.try_seconds)
    if work is None:
        return TriedChanges([], "updates", [], ["no change was tried: the script made too few iterations."])
    seen = observed(leader, profile.processes, run.start_ns, run.end_ns, cores())
    changes = plausible_changes(seen, options.allow_numerics)
    if not changes:
        return TriedChanges([], work.unit, [], ["no change was tried: the profile makes none plausible."])
    update_share = seen.share("update", "sample", "returns")
    trials = Trials(command, source, work, run.start_up_s, update_share, options)
    seconds = min(options.try_budget, 2 * options.try_runs * len(changes) * trials.run_s)
    with progress_bar(seconds) as progress:
        return trials.run(changes, progress)
