"""Row: what one check of the machine found, in one line of the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Row:
    """What a check found.

    Attributes:
        name: What was checked.
        status: ok; warn works but costs something; fail does not work; skipped could not or need not be checked.
        measured: The finding in words, figures with their units.
        advice: What to do, one sentence; always there where the status is fail.
        figures: The same figures for machines; every name ends in its unit where it has one.
        section: Set by the checkup.
        seconds: Time that the check took; set by the checkup.
    """

    name: str
    status: Status
    measured: str
    advice: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    section: str = ""
    seconds: float = 0.0


def ok(name: str, measured: str, /, **figures: Any) -> Row:
    """A row of something that is as it should be."""
    return Row(name, "ok", measured, figures=figures)


def warn(name: str, measured: str, advice: str, /, **figures: Any) -> Row:
    """A row of something that works and costs something."""
    return Row(name, "warn", measured, advice, figures)


def fail(name: str, measured: str, advice: str, /, **figures: Any) -> Row:
    """A row of something that does not work."""
    return Row(name, "fail", measured, advice, figures)


def skipped(name: str, measured: str, advice: str = "", /, **figures: Any) -> Row:
    """A row of something that could not, or need not, be checked here."""
    return Row(name, "skipped", measured, advice, figures)
