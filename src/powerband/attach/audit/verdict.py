"""Verdict: what the reads and the changed runs say about an option."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from powerband.attach.audit import meaning
from powerband.attach.audit.comparison import BITS, Difference, differences, fingerprint, total
from powerband.attach.audit.options import ScriptOption
from powerband.attach.audit.short_run import ShortRun
from powerband.attach.audit.source_scan import SourceScan
from powerband.attach.audit.texts import Wording
from powerband.attach.audit.values import acts_within

HARDWARE = re.compile(r"cuda|gpu|pin_memory|amp$|fp16|bf16|tf32|half|nccl|cudnn|precision|device|mixed")
"""Names of options that may act on a GPU only."""
PLACE_NAME = re.compile(
    r"path|dir|folder|name|file|output|log|id$|tag|prefix|suffix|project|group|entity|exp|run|title"
)
"""Names of options whose effect is the name of an output."""


@dataclass(frozen=True)
class Verdict:
    """Verdict about one option.

    Attributes:
        option: Name of the option.
        verdict: ``works``, ``no-effect``, ``never-read``, ``misnamed`` or ``unknown``.
        evidence: One sentence.
        value: Value in the unchanged run.
        tried: Values that were tried.
        where: ``file:line`` of the definition.
        reads: ``file:line`` of the first reads.
    """

    option: str
    verdict: str
    evidence: str
    value: Any
    tried: list[Any]
    where: str
    reads: list[str]


@dataclass
class Evidence:
    """What is known about one option.

    Attributes:
        option: The option.
        baseline: Two unchanged runs.
        scan: The source code.
        gpu: Whether this machine has a GPU.
        say: Texts.
        runs: Pairs of a tried value and its run.
    """

    option: ScriptOption
    baseline: tuple[ShortRun, ShortRun]
    scan: SourceScan
    gpu: bool
    say: Wording
    runs: list[tuple[Any, ShortRun]] = field(default_factory=list)

    def found(self, value: Any, run: ShortRun) -> list[Difference]:
        """Returns the differences of a changed run."""
        echoes = {str(value): str(self.option.value), repr(value): repr(self.option.value)}
        return differences(self.baseline, run, echoes)

    def effect(self) -> Difference | None:
        """Returns what the last run with an effect differs in, or None. An error alone is no effect."""
        for value, run in reversed(self.runs):
            if run.failed or run.outside or not self.applied(run):
                continue
            found = self.found(value, run)
            if not PLACE_NAME.search(self.option.last_name) and not isinstance(self.option.value, str):
                found = [one for one in found if one.aspect != "files" or len(self.runs) > 1]
            if found:
                return best(found)
        return None

    def applied(self, run: ShortRun) -> bool:
        """Whether the changed value has reached the script."""
        return any(line["id"] == self.option.id for line in run.lines("changed"))

    def decided(self) -> bool:
        """Whether no further value needs to be tried."""
        return self.effect() is not None


def best(found: list[Difference]) -> Difference:
    """Returns the difference that says most: a count before bits, and bits before output."""
    order = ("environments", "rows", "groups", "first groups", "dtypes", "calls", "processes", "updates", "env_steps")
    ranked = {name: index for index, name in enumerate(order)}
    return min(found, key=lambda one: ranked.get(one.aspect, 50 if one.aspect in BITS else 40 if one.strong else 60))


def judge(evidence: Evidence) -> Verdict:
    """Returns the verdict about an option whose changed runs are complete."""
    option, say, base = evidence.option, evidence.say, evidence.baseline[0]
    updates = total(base, "updates")
    usable = [(v, run) for v, run in evidence.runs if evidence.applied(run) and not run.failed and not run.outside]
    tried = [value for value, _ in usable]
    changes = change_text(option.value, tried)
    read = _read_text(option, say)

    def verdict(name: str, text: str) -> Verdict:
        named = f"{option.name}: {text}" if text.startswith(changes.split("→")[0]) else text
        return Verdict(option.name, name, named, option.value, tried, option.where, option.reads)

    effect = evidence.effect()
    told = meaning.misnamed(option, base, usable, effect, say)
    if told is not None:
        return verdict(*told)
    if effect is not None:
        value = next(v for v, run in reversed(usable) if evidence.found(v, run))
        same = [other for other in tried if other != value]
        texts = {"change": change_text(option.value, [value]), "aspect": say.aspect(effect.aspect)}
        texts |= {"before": effect.before, "after": effect.after}
        if same:
            return verdict("works", say("works_elsewhere", same=", ".join(map(str, same)), **texts))
        return verdict("works", say("works", **texts))
    if not evidence.runs:
        return verdict("unknown", say("no_value", value=option.value))
    if not usable:
        value, run = evidence.runs[0]
        change = change_text(option.value, [value])
        if run.outside:
            return verdict("unknown", say("outside", change=change, path=run.outside))
        if run.failed:
            return verdict("unknown", say("refused", change=change, error=run.last_error()))
        return verdict("unknown", say("not_applied"))
    if option.never_read:
        return never_read(evidence, tried)
    if not updates and not total(base, "env_steps"):
        return verdict("unknown", say("unseen", changes=changes, read=read))
    if not repeatable(evidence.baseline):
        return verdict("unknown", say("not_repeatable", changes=changes, read=read))
    if base.stopped and not acts_within(option, tried, updates):
        return verdict("unknown", say("later", changes=changes, updates=updates, read=read))
    if not evidence.gpu and HARDWARE.search(option.last_name) and "cuda" in evidence.scan.text:
        return verdict("unknown", say("hardware", changes=changes, read=read))
    number = fingerprint(base)["environments"]
    if meaning.ENVIRONMENTS.search(option.last_name) and number:
        return verdict("no-effect", say("environments", changes=changes, number=number, read=read))
    what = say("all_aspects" if updates else "output_aspects")
    return verdict("no-effect", say("no_difference", changes=changes, what=what, read=read))


def never_read(evidence: Evidence, tried: list[Any]) -> Verdict:
    """Returns the verdict about an option that nobody has read and whose change makes no difference."""
    option, say, base = evidence.option, evidence.say, evidence.baseline[0]
    updates, kind = total(base, "updates"), "never-read"
    if option.overwritten:
        text = say("overwritten", where=option.where, place=option.overwritten)
    elif base.stopped and (places := evidence.scan.places(option)):
        kind, text = "unknown", say("late_read", updates=updates, place=places[0])
    else:
        window = say("window", updates=updates) if base.stopped else ""
        text = say("never_read", where=option.where, window=window)
    return Verdict(option.name, kind, text, option.value, tried, option.where, option.reads)


def repeatable(baseline: tuple[ShortRun, ShortRun]) -> bool:
    """Whether two unchanged runs have the same losses and parameters."""
    first, second = (fingerprint(run) for run in baseline)
    for name in BITS:
        pairs = list(zip(first.get(name, []), second.get(name, []), strict=False))
        if any(a != b for a, b in pairs):
            return False
    return True


def change_text(value: Any, tried: list[Any]) -> str:
    """Returns a text such as ``16 → 1, 32``."""
    return f"{value} → {', '.join(map(str, tried))}"


def _read_text(option: ScriptOption, say: Wording) -> str:
    if option.reads:
        return say("read_at", place=option.reads[0])
    return say("read_in_bulk", place=option.bulk[0]) if option.bulk else ""
