"""Command ``powerband audit GUIDE.md``: writes the measured result next to each claim of a tuning guide."""

from __future__ import annotations

import sys
from pathlib import Path

from powerband.cli.catalogue import RECIPES, configure, installed, load
from powerband.core.config import resolve
from powerband.core.config.command_line import check_writable, print_or_write
from powerband.core.errors import ConfigError

USAGE = "GUIDE.md [seconds=600] [recipe=NAME] [out=FILE.md] [lang=auto]"


def is_guide(arguments: list[str]) -> bool:
    """Whether the arguments after ``powerband audit`` name a guide and not a script."""
    return bool(arguments) and not arguments[0].startswith("-") and "=" not in arguments[0]


def audit_guide(arguments: list[str], target: str) -> int:
    """Audits a guide, and prints or writes it with the results.

    Args:
        arguments: Path of the guide, and options.
        target: Target of the JSON output, as of `split_json_option`.

    Returns:
        Exit status, 0 for success.
    """
    from powerband.attach.audit.guide.guide_audit import GuideAudit, GuideOptions
    from powerband.attach.audit.guide.markdown import read_guide
    from powerband.core.telemetry.console import budget_progress_bar

    options = resolve(GuideOptions, arguments[1:], help_command="powerband audit --help").config
    check_writable(options.out and str(Path(options.out).expanduser()), "out=FILE.md")
    text = read_guide(Path(arguments[0]).expanduser())
    if not text.strip():
        raise ConfigError(f"{arguments[0]} is empty. Name a Markdown file with a tuning guide.")
    recipes = [load(options.recipe)] if options.recipe else [load(name) for name in (*RECIPES, *installed())]
    with budget_progress_bar(max(options.seconds, 1.0)) as progress:
        result = GuideAudit(text, options, recipes, configure, progress).run()
    if options.out:
        path = Path(options.out).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(result.markdown, encoding="utf-8", newline="")
        except OSError as error:
            sys.stdout.write(result.markdown)
            raise ConfigError(f"{path} cannot be written ({error.strerror}). The result is on stdout.") from error
        print(f"powerband: {path}", file=sys.stderr)
    elif target != "-":
        sys.stdout.write(result.markdown)
    if target:
        print_or_write(result.to_dict(), target)
    return 0
