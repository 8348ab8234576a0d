"""Command ``powerband audit``: finds options of a script that have no effect, or claims of a guide that are wrong."""

from __future__ import annotations

import sys
from pathlib import Path

from powerband.cli import guide_command
from powerband.cli.script_commands import split_command
from powerband.core.config import resolve
from powerband.core.config.command_line import print_or_write, split_json_option, wants_help
from powerband.core.config.schema import fields_table
from powerband.core.errors import ConfigError, exit_on_signal

USAGE = "[seconds=600] [window=4] [options=NAME,...] [parallel=2] [lang=en] -- python train.py ..."


def audit(arguments: list[str]) -> int:
    """Audits a script, and prints one verdict per option; or audits a tuning guide.

    Args:
        arguments: Command line after ``powerband audit``.

    Returns:
        Exit status: 0, the script's own if it fails by itself, or 128 + signal if a signal ended the audit.
    """
    from powerband.attach.audit.options import AuditOptions

    own, command = split_command(arguments)
    target, own = split_json_option(own)
    if wants_help(own):
        from powerband.attach.audit.guide.guide_audit import GuideOptions

        print(f"powerband audit {USAGE}\n\n{fields_table(AuditOptions)}\n")
        print(f"powerband audit {guide_command.USAGE}\n\n{fields_table(GuideOptions)}")
        return 0
    if not command and guide_command.is_guide(own):
        return guide_command.audit_guide(own, target)
    if not command:
        raise ConfigError(
            "No command follows --. Write powerband audit -- python train.py. "
            f"For a tuning guide, write powerband audit {guide_command.USAGE}."
        )
    options = resolve(AuditOptions, own, help_command="powerband audit --help").config
    from powerband.attach.audit.audit import Audit, ScriptFailed
    from powerband.attach.audit.table import print_table
    from powerband.attach.processes.launch import refuse_if_switched_off
    from powerband.core.telemetry.console import budget_progress_bar

    refuse_if_switched_off("powerband audit")
    with exit_on_signal() as received, budget_progress_bar(options.seconds) as progress:
        gpu = any(Path("/dev").glob("nvidia[0-9]*"))  # a container may have any of the machine's GPUs
        result = Audit(command, Path.cwd(), options, gpu, progress).run()
    if isinstance(result, ScriptFailed):
        sys.stderr.write(result.console)
        print(f"powerband: the script fails by itself, with status {result.status}.", file=sys.stderr)
        return result.status
    if target != "-":
        print_table(result, options.lang)
    if target:
        print_or_write(result.to_dict(), target)
    return 128 + received[0] if received else 0
