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


@dataclass(frozen=True)
class Trial:
    """A run with one other value, and what differs in it.

    Attributes:
        value: The value.
        run: The run.
        found: Its differences.
        usable: Whether the value has reached the script and the script did not fail.
    """

    value: Any
    run: ShortRun
    found: list[Difference]
    usable: bool


@dataclass
class Evidence:
    """What is known about one option.

    Attributes:
        option: The option.
        baseline: Two unchanged runs.
        scan: The source code.
        gpu: Whether this machine has a GPU.
        say: Texts.
        trials: Runs with other values.
        left: Values that were not tried yet.
    """

    option: ScriptOption
    baseline: tuple[ShortRun, ShortRun]
    scan: SourceScan
    gpu: bool
    say: Wording
    trials: list[Trial] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)

    def add(self, value: Any, run: ShortRun, found: list[Difference] | None = None) -> None:
        """Adds a run with the value `value`. `found` are its differences, if the caller knows them."""
        applied = any(line["id"] == self.option.id for line in run.lines("changed"))
        usable = applied and not (run.failed or run.outside or run.timed_out)
        if found is None:
            found = differences(self.baseline, run, texts_of(self.option.value, value)) if usable else []
        self.trials.append(Trial(value, run, found, usable))

    def effective(self) -> Trial | None:
        """Returns the last trial with an effect, or None. An error alone is no effect."""
        return next((trial for trial in reversed(self.trials) if trial.found), None)


def best(found: list[Difference]) -> Difference:
    """Returns the difference that says most: a count before bits, and bits before output."""
    order = ("environments", "rows", "groups", "first groups", "dtypes", "calls", "processes", "updates", "env_steps")
    ranked = {name: index for index, name in enumerate(order)}
    return min(found, key=lambda one: ranked.get(one.aspect, 50 if one.aspect in BITS else 40 if one.strong else 60))


def judge(evidence: Evidence) -> Verdict:
    """Returns the verdict about an option whose changed runs are complete."""
    option, base = evidence.option, evidence.baseline[0]
    say = evidence.say.about(option.name)
    updates = total(base, "updates")
    usable = [(trial.value, trial.run) for trial in evidence.trials if trial.usable]
    tried = [value for value, _ in usable]
    changes = change_text(option.value, tried)
    read = _read_text(option, say)

    def verdict(name: str, text: str) -> Verdict:
        return Verdict(option.name, name, text, option.value, tried, option.where, option.reads)

    effective = evidence.effective()
    renamed = meaning.misnamed(option, base, usable, effective is not None, say)
    if renamed is not None:
        return verdict(*renamed)
    if effective is not None:
        effect = best(effective.found)
        same = [other for other in tried if other != effective.value]
        texts = {"change": change_text(option.value, [effective.value]), "aspect": say.aspect(effect.aspect)}
        texts |= {"before": effect.before, "after": effect.after}
        if same:
            return verdict("works", say("works_elsewhere", same=", ".join(map(str, same)), **texts))
        return verdict("works", say("works", **texts))
    if not evidence.trials:
        return verdict("unknown", say("no_value", value=option.value))
    if not usable:
        run = evidence.trials[0].run
        change = change_text(option.value, [evidence.trials[0].value])
        if run.outside:
            return verdict("unknown", say("outside", change=change, path=run.outside))
        if run.failed:
            return verdict("unknown", say("refused", change=change, error=run.last_error()))
        if run.timed_out:
            return verdict("unknown", say("slow", change=change, seconds=round(run.seconds)))
        return verdict("unknown", say("not_applied"))
    if evidence.left:
        return verdict("unknown", say("not_reached", read=read))
    if option.never_read:
        return never_read(evidence, tried)
    if not updates and not total(base, "env_steps"):
        return verdict("unknown", say("unseen", changes=changes, read=read))
    if base.stopped and not updates:
        return verdict("unknown", say("untrained", changes=changes, read=read))
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


def texts_of(*values: Any) -> list[str]:
    """Returns the texts in which output may repeat values."""
    return [text(value) for value in values for text in (str, repr)]


def change_text(value: Any, tried: list[Any]) -> str:
    """Returns a text such as ``16 → 1, 32``."""
    return f"{value} → {', '.join(map(str, tried))}"


def _read_text(option: ScriptOption, say: Wording) -> str:
    if option.reads:
        return say("read_at", place=option.reads[0])
    return say("read_in_bulk", place=option.bulk[0]) if option.bulk else ""
