"""CheckResult: the outcome of one check of the machine, one row of the table that ``powerband doctor`` prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check.

    Attributes:
        name: Name of the check.
        status: ``ok``; ``warn`` if something works but costs speed or safety; ``fail`` if it does not work; ``skipped``
            if the check is impossible or unnecessary on this machine.
        message: The finding as text; numbers have their units.
        advice: What to do, in one sentence; never empty if the status is ``fail``.
        metrics: Name -> number, for programs: the numbers of `message`. The name ends with the unit of the number.
        section: Section of ``powerband doctor`` that contains the check; set by `checkup`.
        seconds: Duration of the check; set by `checkup`.
    """

    name: str
    status: Status
    message: str
    advice: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    section: str = ""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as ``powerband doctor --json`` writes it."""
        return {
            "name": self.name,
            "status": self.status,
            "measured": self.message,
            "advice": self.advice,
            "figures": self.metrics,
            "section": self.section,
            "seconds": self.seconds,
        }


def ok(name: str, message: str, /, **metrics: Any) -> CheckResult:
    """Returns a result with status ``ok``: the checked thing works as it should.

    Keyword arguments become `CheckResult.metrics`.
    """
    return CheckResult(name, "ok", message, metrics=metrics)


def warn(name: str, message: str, advice: str, /, **metrics: Any) -> CheckResult:
    """Returns a result with status ``warn``: the checked thing works but costs speed or safety.

    Keyword arguments become `CheckResult.metrics`.
    """
    return CheckResult(name, "warn", message, advice, metrics)


def fail(name: str, message: str, advice: str, /, **metrics: Any) -> CheckResult:
    """Returns a result with status ``fail``: the checked thing does not work.

    Keyword arguments become `CheckResult.metrics`.
    """
    return CheckResult(name, "fail", message, advice, metrics)


def skipped(name: str, message: str, advice: str = "", /, **metrics: Any) -> CheckResult:
    """Returns a result with status ``skipped``: a check that is impossible or unnecessary on this machine.

    Keyword arguments become `CheckResult.metrics`.
    """
    return CheckResult(name, "skipped", message, advice, metrics)
