"""Annotation: the guide's Markdown with one quoted line per result after each claim, and a table of its commands."""

from __future__ import annotations

from collections.abc import Iterable

from powerband.attach.audit.guide.commands import Command
from powerband.attach.audit.guide.markdown import Block
from powerband.attach.audit.guide.resolution import Resolved
from powerband.attach.audit.guide.sentences import GuideWording
from powerband.attach.audit.guide.verdict import ClaimVerdict
from powerband.core.config.texts import shortened

MAX_LABELS = 4
"""Most claims that one line names."""


def annotated(
    text: str,
    verdicts: Iterable[ClaimVerdict],
    commands: list[tuple[Command, Resolved]],
    say: GuideWording,
    summary: str,
) -> str:
    """Returns a guide with its results. Every line of the guide stays as it is.

    Args:
        text: The guide.
        verdicts: Verdicts about its claims.
        commands: Its commands, and what the configuration says about them.
        say: Writes the sentences.
        summary: Sentence for the end of the guide.
    """
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    by_block: dict[int, list[ClaimVerdict]] = {}
    blocks: dict[int, Block] = {}
    for verdict in verdicts:
        block = verdict.claim.block
        blocks[block.end] = block
        by_block.setdefault(block.end, []).append(verdict)
    written: list[str] = []
    for number, line in enumerate(lines, start=1):
        written.append(line)
        if number in by_block:
            following = lines[number].strip() if number < len(lines) else ""
            written += [f"{each}{end}" for each in _quoted(blocks[number], by_block[number], say, bool(following))]
    table = [f"| {' | '.join(say('columns').split('|'))} |", "| --- | --- | --- | --- |"]
    rows = [row for command, resolved in commands if (row := _row(command, resolved, say))]
    closing = ["", f"## {say('title')}", "", summary, *(["", *table, *rows] if rows else [])]
    return "".join([*written, *(f"{each}{end}" for each in closing)])


def _quoted(block: Block, verdicts: list[ClaimVerdict], say: GuideWording, followed: bool) -> list[str]:
    """The quoted lines after one block; a list item keeps them in the item."""
    margin = " " * block.indent
    quoted: list[str] = []
    for sentence in sentences_of_block(verdicts, say):
        quoted += ([f"{margin}>"] if quoted else []) + [f"{margin}> {say('line', text=sentence)}"]
    if block.kind == "item":
        return quoted
    return ["", *quoted, *([""] if followed else [])]


def sentences_of_block(verdicts: list[ClaimVerdict], say: GuideWording) -> list[str]:
    """Returns one sentence per measured claim, and one per reason for all claims that were not measured."""
    groups: dict[object, list[ClaimVerdict]] = {}
    for verdict in verdicts:
        measured = verdict.verdict not in ("not-measurable", "refused") or verdict.reason == "noisy"
        key = id(verdict) if measured else say.reason(verdict)
        groups.setdefault(key, []).append(verdict)
    alone = len(groups) == 1
    return [say.sentence(group[0], "" if alone else _labels(group, say)) for group in groups.values()]


def _labels(group: list[ClaimVerdict], say: GuideWording) -> str:
    """Names of the claims of a group, or of their columns if they are many cells of a table."""
    claims = [each.claim for each in group]
    names = [each.subject or each.effect.clause.strip() or each.text for each in claims]
    labels = list(dict.fromkeys(shortened(name, 48) for name in names))
    columns = {label.rpartition(", ")[2] for label in labels if ", " in label}
    if len(labels) > MAX_LABELS and columns and all(each.subject for each in claims):
        labels = sorted(columns)
    more = [say("more", count=len(labels) - MAX_LABELS)] if len(labels) > MAX_LABELS else []
    quoted = [f"“{label}”" for label in labels[:MAX_LABELS]]
    return ("、" if say.lang == "zh" else "; ").join(quoted) + "".join(f" {each}" for each in more)


def _row(command: Command, resolved: Resolved, say: GuideWording) -> str:
    """Row of the table of commands; "" for a command of the machine."""
    if resolved.status == "tool":
        return ""
    message = resolved.message
    if resolved.status == "unknown":
        message = say("script") if message == "script" else say("missing_file", file=message)
    if resolved.absent_gpus:
        message = f"{say('absent_gpus')} {message}".strip()
    status = say.verdict("refused") if resolved.status == "refused" else say(resolved.status)
    lines = [line.split("#")[0].strip() for line in command.text.split("\n")]
    shown = shortened("; ".join(filter(None, lines)), 100).replace("|", "\\|").replace("`", "'")
    return f"| {command.line} | `{shown}` | {status} | {shortened(message, 400).replace('|', chr(92) + '|')} |"
