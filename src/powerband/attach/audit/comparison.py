"""Comparison: what differs between an unchanged and a changed run.

What differs between two unchanged runs decides nothing. Losses, gradients and parameters are compared bit by bit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from powerband.attach.audit.short_run import ShortRun
from powerband.attach.processes.records import Record

PROGRESS = re.compile(r"\d+%\||it/s|s/it|\bETA\b")
"""Console lines of progress bars, whose number depends on the time."""
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
HEXADECIMAL = re.compile(r"\b(?:0x)?[0-9a-f]{6,}\b")
OUTPUT = ("console", "files", "file sizes")
"""Aspects of the output. They follow after all others, because they say less."""
BITS = ("loss", "gradients", "parameters")


FLATTENED = ("environments", "groups", "first groups")


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
    return sum(facts["values"].get("environments", 0) for facts in stepping_processes(run))


def single_steps(run: ShortRun) -> int:
    """Returns the steps of single environments; a step of a vector environment counts all of its environments."""
    return sum(facts["counts"].get("single_steps", 0) for facts in stepping_processes(run))


def stepping_processes(run: ShortRun) -> list[dict[str, Any]]:
    """Returns the facts of the processes whose environments count.

    A vector environment and its workers report the same steps. So the processes that train count, or the first one if
    none does; all processes count only if those have seen no environment, such as with remote actors.
    """
    facts = [found for record in run.records if (found := facts_of(record))]
    training = [found for found in facts if found["counts"].get("updates")] or facts[:1]
    return [found for found in training if found["values"].get("environments")] or facts


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
        found |= {start + name: value for name, value in facts["values"].items() if name not in FLATTENED}
        found |= {start + name: value for name, value in optimiser_settings(facts["values"]).items()}
        found |= {start + name: value for name, value in facts["counts"].items()}
        found[start + "events"] = facts["events"]
    return found


def optimiser_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the optimisers at the first and at the last step, such as ``Adam lr``."""
    found: dict[str, Any] = {}
    for when, name in (("", "first groups"), (" at the last step", "groups")):
        for index, groups in values.get(name, {}).items():
            for number, group in enumerate(groups):
                label = f"{group['class']}{' ' + index if index != '0' else ''}{f'[{number}]' if number else ''}"
                found |= {f"{label} {key}{when}": value for key, value in group.items() if key != "class"}
    return found


def console_templates(run: ShortRun, hidden: Sequence[str]) -> Counter[str]:
    """Counts the lines of the output by their text without numbers.

    Args:
        run: The run.
        hidden: Texts to hide too, such as the values of the changed option.
    """
    lines = [line for line in re.split(r"[\r\n]+", run.console) if line.strip() and not PROGRESS.search(line)]
    counts: Counter[str] = Counter()
    for line in lines:
        line = hide(line, hidden)
        counts[NUMBER.sub("#", HEXADECIMAL.sub("#", line)).strip()] += 1
    return counts


def hide(text: str, hidden: Sequence[str]) -> str:
    """Replaces the values of the changed option, old and new, so that text that repeats them alone is equal."""
    for value in filter(None, hidden):
        text = re.sub(r"(?<![A-Za-z0-9.])" + re.escape(value) + r"(?![A-Za-z0-9])", "#", text)
    return text


def differences(unchanged: tuple[ShortRun, ShortRun], changed: ShortRun, hidden: Sequence[str]) -> list[Difference]:
    """Compares a changed run with two unchanged ones.

    Args:
        unchanged: Two runs that differ in nothing.
        changed: Run with one option changed.
        hidden: Texts of the old and the new value; output that repeats the value alone does not differ.

    Returns:
        The aspects in which `changed` differs and the unchanged runs agree; those of the output come last.
    """
    first, second, other = (fingerprint(run) for run in (*unchanged, changed))
    found = []
    for aspect in sorted({*first, *second, *other}):
        name = re.sub(r"^rank \d+ ", "", aspect)
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
    if first["ends"] == other["ends"]:  # output of runs that end in different ways has different lengths anyway
        found += _output_differences(unchanged, changed, hidden)
    return found


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
    if name == "calls":
        before, after = before or {}, after or {}
        gone, new = ([key for key in a if key not in b] for a, b in ((before, after), (after, before)))
        return Difference(name, _short(", ".join(gone)), _short(", ".join(new)))
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
    unchanged: tuple[ShortRun, ShortRun], changed: ShortRun, hidden: Sequence[str]
) -> list[Difference]:
    found = []
    first, second, other = (console_templates(run, hidden) for run in (*unchanged, changed))
    varying = {line for line in first | second if first[line] != second[line]}
    apart = sorted(line for line in first | other if line not in varying and first[line] != other[line])
    if apart:
        found.append(Difference("console", f"{first[apart[0]]} x {apart[0][:60]!r}", str(other[apart[0]])))
    names, again, others = ({name: size for name, (size, _) in run.files.items()} for run in (*unchanged, changed))
    if set(names) == set(again) != set(others):
        new = ", ".join(sorted(set(names) ^ set(others))[:3])
        found.append(Difference("files", str(len(names)), f"{len(others)}: {new}"))
    for name, size in names.items():
        if again.get(name) == size and abs(others.get(name, size) - size) > 8 + 0.02 * size:
            found.append(Difference("file sizes", f"{name}: {size}", str(others[name])))
            break
    return found
