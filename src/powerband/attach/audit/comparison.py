"""Comparison: what differs between an unchanged and a changed run.

What differs between two unchanged runs decides nothing. Losses, gradients and parameters are compared bit by bit.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from powerband.attach.audit.short_run import ShortRun
from powerband.attach.records import Record

PROGRESS = re.compile(r"\d+%\||it/s|s/it|\bETA\b")
"""Console lines of progress bars, whose number depends on the time."""
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
HEXADECIMAL = re.compile(r"\b(?:0x)?[0-9a-f]{6,}\b")
OUTPUT = ("console", "files", "file sizes", "file contents")
"""Aspects of the output. They follow after all others, because they say less."""
BITS = ("loss", "gradients", "parameters")


@dataclass(frozen=True)
class Difference:
    """One aspect in which a changed run differs.

    Attributes:
        aspect: Name, such as ``environments`` or ``parameters``.
        before, after: Short texts of both values.
    """

    aspect: str
    before: str
    after: str

    @property
    def strong(self) -> bool:
        """Whether the aspect belongs to the computation, and not to the output."""
        return self.aspect not in OUTPUT


def facts_of(record: Record) -> dict[str, Any]:
    """Returns the last facts that a process has written, or an empty dictionary."""
    lines = record.of_kind("facts")
    return lines[-1] if lines else {}


def learning_processes(run: ShortRun) -> list[dict[str, Any]]:
    """Returns the facts of the processes that have made optimiser steps, ordered by rank; else of all with facts."""
    records = sorted(run.records, key=lambda record: (str(record.start.get("rank", "")).zfill(6), record.began_ns))
    facts = [found for record in records if (found := facts_of(record))]
    return [found for found in facts if found["counts"].get("updates")] or facts


def total(run: ShortRun, name: str) -> int:
    """Returns a count of `name`, summed over the processes of a run."""
    return sum(facts_of(record).get("counts", {}).get(name, 0) for record in run.records)


def environments(run: ShortRun) -> int:
    """Returns the number of environments that have stepped, over all processes; 0 if none was seen."""
    return sum(facts_of(record).get("values", {}).get("environments", 0) for record in run.records)


def fingerprint(run: ShortRun) -> dict[str, Any]:
    """Returns the aspects of a run that can be compared, by name."""
    found: dict[str, Any] = {
        "ends": "stopped" if run.stopped else "error: " + run.last_error() if run.failed else "complete",
        "processes": len(run.records),
        "ranks": len([r for r in run.records if facts_of(r).get("counts", {}).get("updates")]),
        "environments": environments(run),
    }
    for index, facts in enumerate(learning_processes(run)):
        start = f"rank {index} " if index else ""
        found |= {start + name: values for name, values in facts["series"].items()}
        found |= {start + name: value for name, value in facts["values"].items() if name != "environments"}
        found |= {start + name: value for name, value in facts["counts"].items()}
        found[start + "events"] = facts["events"]
    found["console"] = console_templates(run, {})
    found["files"] = sorted(run.files)
    found["file sizes"] = {name: size for name, (size, _) in run.files.items()}
    found["file contents"] = {name: digest for name, (_, digest) in run.files.items()}
    return found


def console_templates(run: ShortRun, replaced: dict[str, str]) -> Counter[str]:
    """Counts the lines of the output by their text without numbers.

    Args:
        run: The run.
        replaced: Texts to replace first, such as the changed value of an option by its unchanged value.
    """
    lines = [line for line in re.split(r"[\r\n]+", run.console) if line.strip() and not PROGRESS.search(line)]
    counts: Counter[str] = Counter()
    for line in lines:
        for text, other in replaced.items():
            line = re.sub(r"(?<![\w.])" + re.escape(text) + r"(?![\w.])", other, line)
        counts[NUMBER.sub("#", HEXADECIMAL.sub("#", line)).strip()] += 1
    return counts


def differences(unchanged: tuple[ShortRun, ShortRun], changed: ShortRun, echoes: dict[str, str]) -> list[Difference]:
    """Compares a changed run with two unchanged ones.

    Args:
        unchanged: Two runs that differ in nothing.
        changed: Run with one option changed.
        echoes: Text of the new value -> text of the old one; output that repeats the value alone does not differ.

    Returns:
        The aspects in which `changed` differs and the unchanged runs agree; those of the output come last.
    """
    first, second, other = (fingerprint(run) for run in (*unchanged, changed))
    found = []
    for aspect in sorted({*first, *second, *other}, key=lambda name: (name in OUTPUT, name)):
        name = re.sub(r"^rank \d+ ", "", aspect)
        if name in OUTPUT:
            continue
        values = [fingerprint.get(aspect) for fingerprint in (first, second, other)]
        if name in BITS or name == "events":
            length = min(len(value or []) for value in values)
            if name == "events":
                length = max(0, length - 1)  # the end of the run cuts the last entry
            values = [(value or [])[:length] for value in values]
        elif name.endswith(("steps", "updates", "backward")) or name.startswith("updates of"):
            if _same_count(values[0], values[2], unchanged[0], changed):
                continue
        if name == "rows":
            values = [sorted(value or {}) for value in values]
        if values[0] == values[1] != values[2]:
            found.append(_difference(name, values[0], values[2]))
    return found + _output_differences(unchanged, changed, (first, second, other), echoes)


def _same_count(before: Any, after: Any, unchanged: ShortRun, changed: ShortRun) -> bool:
    """Whether two counts agree; those of runs that were stopped may differ by what happens between two checks."""
    if before is None or after is None:
        return before == after
    if not (unchanged.stopped or changed.stopped):
        return bool(before == after)
    return bool(abs(before - after) <= max(2, 0.02 * max(before, after)))


def _difference(name: str, before: Any, after: Any) -> Difference:
    if name in BITS:
        step = next(index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
        return Difference(name, f"step {step + 1}: {_number(before[step])}", _number(after[step]))
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        return Difference(
            name, _short({k: before.get(k) for k in keys[:2]}), _short({k: after.get(k) for k in keys[:2]})
        )
    return Difference(name, _short(before), _short(after))


def _number(value: Any) -> str:
    return f"{float.fromhex(value):.9g}" if isinstance(value, str) else str(value)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 90 else text[:87] + "..."


def _output_differences(
    unchanged: tuple[ShortRun, ShortRun],
    changed: ShortRun,
    fingerprints: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
    echoes: dict[str, str],
) -> list[Difference]:
    first, second, other = fingerprints
    found = []
    lines = console_templates(changed, echoes)
    same = {line for line, n in first["console"].items() if second["console"].get(line) == n}
    varying = {line for line in (first["console"] | second["console"]) if line not in same}
    changed_lines = {line for line in same if lines.get(line) != first["console"][line]}
    changed_lines |= {line for line in lines if line not in first["console"] and line not in varying}
    if changed_lines and not _ends_apart(first, other):
        line = min(changed_lines)
        found.append(Difference("console", f"{first['console'].get(line, 0)} x {line[:60]!r}", str(lines.get(line, 0))))
    names = [_replaced(name, echoes) for name in other["files"]]
    if first["files"] == second["files"] != sorted(names) and not _ends_apart(first, other):
        apart = sorted(set(first["files"]) ^ set(names))
        found.append(Difference("files", f"{len(first['files'])}", f"{len(names)}: {', '.join(apart[:3])}"))
    sizes = {_replaced(name, echoes): size for name, size in other["file sizes"].items()}
    for name, size in first["file sizes"].items():
        if second["file sizes"].get(name) == size and abs(sizes.get(name, size) - size) > 8 + 0.02 * size:
            found.append(Difference("file sizes", f"{name}: {size}", str(sizes[name])))
            break
    return found


def _ends_apart(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the runs ended in different ways, so that their output has different lengths anyway."""
    return bool(first["ends"] != other["ends"])


def _replaced(name: str, echoes: dict[str, str]) -> str:
    for text, old in echoes.items():
        name = re.sub(r"(?<![\d.])" + re.escape(text) + r"(?![\d])", old, name)
    return name
