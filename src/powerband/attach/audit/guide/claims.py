"""Claims: sentences, table cells and comments of a guide that promise an effect, with the option that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from powerband.attach.audit.guide.commands import SHELLS, Mention, comment_of
from powerband.attach.audit.guide.effects import Effect, column_effect, effects_of, sentences_of
from powerband.attach.audit.guide.markdown import Block, cells
from powerband.attach.audit.guide.options import DEFAULT_LABEL, FIRST_NUMBER, OFF, Named, OptionTable

MAX_CLAIMS = 1000
"""Most claims of one guide; later ones are left out."""
SEVERAL_GPUS = re.compile(
    r"单 ?GPU|多 ?GPU|单卡|多卡|[2-9]\d* ?卡|[2-9]\d*\s*-?\s*GPUs?(?![A-Za-z])"
    r"|multi-?GPU|\bGPUs\b|[2-9]\d* ?[张个块] ?\S{0,4}GPU"
    r"|[2-9]\d*\s*[x×]\s*(NVIDIA|RTX|A100|H100|\d{4})|单 ?GPU|\brank=|world_size|GPU间",
    re.I,
)
CUDA = re.compile(r"GPU|CUDA|cuDNN|显存|VRAM|nvidia|\bA100|\bRTX|\bH100|\bV100|tensor core|TF32", re.I)
CUDA_CODE = re.compile(r"torch\.cuda|cuda\.amp|GradScaler", re.I)
CUDA_OPTION = re.compile(r"precision$|use_amp$|cudnn")
OWN_LINE = re.compile(r"^\s*>\s*powerband\s*[:：]")
NO_CLAIM_COLUMN = re.compile(r"场景|适用|\buse case|\bwhen to use", re.I)
TOO_LARGE = re.compile(r"太大|太长|过大|too (large|long|big)", re.I)
MARKS = re.compile(r"\*\*|^\s*([-*+]|\d+[.)])\s+|^\s*>+\s*|[✅❌⚠️→✓🚀]")


@dataclass(frozen=True)
class Claim:
    """One promise of a guide.

    Attributes:
        line: Number of its line, from 1.
        text: The sentence, cell or comment.
        effect: What it promises.
        block: Block after which its result is written.
        subject: Label that tells it from other claims of its block, such as the row of a table; "" without one.
        option: Option that it is about, as in the guide; "" if it is about none.
        value: Value of the option; "" if unknown.
        before: Value to compare with; "" means the default of the recipe.
        needs: Hardware that the claim is about: "", ``cuda`` or ``gpus`` (several GPUs).
        stage_words: Arguments that select the stage of the recipe.
    """

    line: int
    text: str
    effect: Effect
    block: Block
    subject: str = ""
    option: str = ""
    value: str = ""
    before: str = ""
    needs: str = ""
    stage_words: tuple[str, ...] = ()


class ClaimReader:
    """Finds the claims of a guide.

    Args:
        lines: Lines of the guide.
        blocks: Its blocks.
        options: Its options.
    """

    def __init__(self, lines: list[str], blocks: Sequence[Block], options: OptionTable) -> None:
        self.lines, self.blocks, self.options = lines, list(blocks), options
        self._sections: dict[int, list[Block]] = {}
        for block in self.blocks:
            self._sections.setdefault(block.section, []).append(block)

    def claims(self) -> list[Claim]:
        """Returns the first `MAX_CLAIMS` claims in the order of their lines."""
        found: list[Claim] = []
        for block in self.blocks:
            found += self._table(block) if block.kind == "table" else self._sentences(block)
            if len(found) >= MAX_CLAIMS:
                break
        return _with_counts(found[:MAX_CLAIMS])

    def _sentences(self, block: Block) -> Iterator[Claim]:
        """Yields the claims of prose and of comments in code."""
        if block.kind == "heading" or OWN_LINE.match(self.lines[block.start]):
            return
        inside = range(block.start, block.end)
        if block.kind == "code":
            inside = range(block.start + 1, block.end - 1)
        last = Named()
        for number in inside:
            line = self.lines[number]
            commented = block.kind == "code" and (block.language in SHELLS or block.language)
            text = comment_of(line) if commented else line
            own = self.options.named_in(line if block.kind != "code" or block.language else _code_text(line))
            if commented and not own.name and line.lstrip().startswith("#"):
                own = self._next_command(block, number)
            if block.kind == "code" and own.name:
                last = own
            for sentence in sentences_of(MARKS.sub("", text).strip()):
                for effect in effects_of(sentence):
                    named = self.options.named_in(sentence)
                    if not named.name or (own.name == named.name and own.value):
                        named = own if own.name else last
                    yield self._claim(number, sentence, effect, block, named)

    def _next_command(self, block: Block, number: int) -> Named:
        """The option of the command below a comment."""
        below = [each for each in self._names(block, number + 1)]
        first = [each for each in below if each.line == below[0].line]
        chosen = next((each for each in first if each.name == self.options.subject), first[0] if first else None)
        return Named(chosen.name, chosen.value) if chosen else Named()

    def _table(self, block: Block) -> Iterator[Claim]:
        header = cells(self.lines[block.start])
        column_option = self.options.named_in(header[0]).name
        for number in range(block.start + 2, block.end):
            row = cells(self.lines[number])
            if column_option:
                match = FIRST_NUMBER.match(row[0])
                named = Named(column_option, match[1] if match else "")
                if match and DEFAULT_LABEL.search(row[0]):
                    continue  # the row to compare with
            else:
                named = self._row_option(row)
            for column, cell in enumerate(row[1:], start=1):
                title = header[column] if column < len(header) else ""
                if NO_CLAIM_COLUMN.search(title):
                    continue
                effect = column_effect(title, cell) or column_effect(row[0], cell) if cell else None
                found = [effect] if effect else effects_of(cell)
                for each in found:
                    subject = f"{row[0]}, {title}" if title else row[0]
                    measured = named.name and each.kind in ("speed", "memory", "updates")
                    context = [row[0], title] if measured else [header[0], *row, title]
                    claim = self._claim(number, cell, each, block, named, " ".join(context))
                    yield replace(claim, subject=subject.replace("`", ""))

    def _row_option(self, row: list[str]) -> Named:
        """The option that the first cell of a row names, with the numbers of the next two cells as its values."""
        named = self.options.named_in(row[0])
        numbers = [match[1] for cell in row[1:] if (match := re.fullmatch(r"\W*(\d[\d.,]*)\D{0,12}", cell))]
        if named.name and not named.value and len(numbers) >= 2:
            return Named(named.name, numbers[1], numbers[0])
        return named

    def _claim(self, number: int, text: str, effect: Effect, block: Block, named: Named, context: str = "") -> Claim:
        """Builds a claim: finds the option around it, the values to compare, and the hardware that it needs."""
        near = f"{effect.clause or text} {context}"
        if effect.kind == "absolute":
            return Claim(number + 1, text, effect, block, needs=self._needs(near, block, effect, Named()))
        if not named.name:
            named = self._around(block)
        before = named.before or self.options.defaults.get(named.name, "")
        value = named.value
        if named.name and not named.before:
            section = self.options.section_values(self.lines, self._sections[block.section], block.section)
            if section[1] and not value:
                before, value = section
        value = value or self._value(named, block.section, before, text)
        if before and before == value:  # the claim is about the default: compare it with the recommendation
            before = self.options.value_of(named.name, -1, value)
        needs = self._needs(near, block, effect, named)
        words = self.options.stage_words(named.name)
        return Claim(number + 1, text, effect, block, "", named.name, value, before, needs, words)

    def _value(self, named: Named, section: int, before: str, text: str) -> str:
        if not named.name:
            return ""
        if value := self.options.value_of(named.name, -1 if TOO_LARGE.search(text) else section, before):
            return value
        fields = self.options.recipe.fields
        paths = [path for path in fields if path == named.name or path.endswith(f".{named.name}")]
        if paths and fields[paths[0]].kind is bool:
            return "false" if OFF.search(text) else "true"
        return "bf16" if paths == ["run.precision"] else ""

    def _around(self, block: Block) -> Named:
        """The option of the heading, of the nearest block before in the same section, or the subject of the guide."""
        section = self._sections[block.section]
        if (named := self.options.named_in(block.heading if len(block.headings) > 1 else "")).name:
            return named
        for other in reversed(section[: section.index(block)]):
            names = self._names(other)
            if len(names) == 1:
                return self.options.named_in(f"{names[0].name}={names[0].value}")
            if len(names) > 1:
                break
        return Named(self.options.subject)

    def _names(self, block: Block, after: int = 0) -> list[Mention]:
        """The first mention of each option in a block, after a line."""
        inside = range(max(after, block.start + 1), block.end + 1)
        found = [each for each in self.options.mentions if each.line in inside and each.section == block.section]
        return list({each.name: each for each in found}.values())

    def _needs(self, text: str, block: Block, effect: Effect, named: Named) -> str:
        """The hardware that a claim is about, by its words, its heading and the code of its section."""
        headings = block.headings[1:][-1:]
        if named.name and block.kind == "table":
            headings = ()
        elif not named.name and effect.kind == "speed":
            headings = block.headings
        near = " ".join([text, *headings])
        if SEVERAL_GPUS.search(near):
            return "gpus"
        around = "\n".join(
            self.lines[i] for other in self._sections[block.section][:12] for i in range(other.start, other.end)
        )
        named_code = CUDA_CODE.search(around) or CUDA_OPTION.search(named.name)
        if named_code or CUDA.search(text if named.name else near):
            return "cuda"
        return ""


def _with_counts(claims: list[Claim]) -> list[Claim]:
    """Turns stated updates per episode into factors: those of one value, compared with those of the other value."""
    stated = {(c.option, c.block.start, c.value): c.effect.count for c in claims if c.effect.count}
    found = []
    for claim in claims:
        other = stated.get((claim.option, claim.block.start, claim.before), 0.0)
        if claim.effect.count and other:
            factor = claim.effect.count / other
            direction = 1 if factor > 1 else -1
            claim = replace(claim, effect=replace(claim.effect, direction=direction, low=factor, high=factor))
        if not claim.effect.count or other:
            found.append(claim)
    return found


def _code_text(line: str) -> str:
    """A line of a block without a language, which may be a drawing: only its assignments name options."""
    return line if "=" in line or ":" in line else ""
