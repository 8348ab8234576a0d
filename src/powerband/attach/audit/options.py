"""Options of ``powerband audit``, and the options that an audited script has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from powerband.attach.audit.short_run import ShortRun
from powerband.core.config.ranges import Range, check_ranges


@dataclass(frozen=True)
@check_ranges
class AuditOptions:
    """Options of ``powerband audit``."""

    seconds: Annotated[float, Range(at_least=10, at_most=86400)] = 600.0
    """Budget in seconds; options that were not reached are unknown."""
    window: Annotated[float, Range(at_least=0.5, at_most=3600)] = 4.0
    """Seconds of the first run after its first optimiser step, and at least 8 of these steps; all other runs end at
    the same counts. A run without optimiser steps ends twice this time after its first environment step."""
    parallel: Annotated[int, Range(at_least=1, at_most=64)] = 2
    """Short runs at the same time."""
    options: str = ""
    """Names of the options to audit, separated by commas; empty means all that the script's own code defines."""
    lang: Literal["en", "zh"] = "en"
    """Language of the table and the evidence."""


@dataclass
class ScriptOption:
    """An option of the script.

    Attributes:
        id: ``parser:name``, unique.
        name: Name, dotted if it is nested.
        value: Its value in the unchanged run.
        type: Name of the value's type.
        where: ``file:line`` of its definition.
        given: Whether the user has set it on the command line or in a file.
        choices: Valid values, if the parser lists them.
        reads: ``file:line`` of the first reads.
        bulk: "how (file:line)" of the bulk reads that include it.
        overwritten: ``file:line`` at which the script replaced its value, or "".
        opaque: Whether the value is of an unknown type, so that `value` is its `repr` and no other value is known.
    """

    id: str
    name: str
    value: Any
    type: str
    where: str
    given: bool
    choices: list[Any]
    reads: list[str] = field(default_factory=list)
    bulk: list[str] = field(default_factory=list)
    overwritten: str = ""
    opaque: bool = False

    @property
    def last_name(self) -> str:
        """Name without the names of its holders."""
        return self.name.replace("/", ".").split(".")[-1]

    @property
    def never_read(self) -> bool:
        """Whether the value that the user sees was read neither alone nor in bulk."""
        return not self.reads and (not self.bulk or bool(self.overwritten))


def options_of(run: ShortRun) -> list[ScriptOption]:
    """Collects the options of a run and the reads of all its processes; those that the user has set come first."""
    found: dict[str, ScriptOption] = {}
    for line in run.lines("option"):
        names = {key: line[key] for key in ("id", "name", "value", "type", "where", "given", "choices", "opaque")}
        found.setdefault(line["id"], ScriptOption(**names))
    for line in run.lines("read"):
        if line["id"] in found and line["where"] not in found[line["id"]].reads:
            found[line["id"]].reads.append(line["where"])
    for line in run.lines("overwritten"):
        if line["id"] in found:
            found[line["id"]].overwritten = line["where"]
    for line in run.lines("bulk"):
        start = f"{line['parser']}:{line['prefix']}"
        for option in found.values():
            if option.id.startswith(start):
                option.bulk.append(
                    f"{line['how']} ({line['where']})" if line["how"] != line["where"] else line["where"]
                )
    return sorted(found.values(), key=lambda option: not option.given)
