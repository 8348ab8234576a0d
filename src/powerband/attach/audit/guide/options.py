"""Options that the prose of a guide names, by their names or by ordinary terms, and the values that it compares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from powerband.attach.audit.guide.commands import ASSIGNMENT, BEFORE, Command, Mention, mentions_in
from powerband.attach.audit.guide.markdown import Block, cells
from powerband.attach.audit.guide.resolution import GuideRecipe

TERMS: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(term, re.I), re.compile(name, re.I))
    for term, name in (
        (r"更新(频率|间隔)|update (interval|frequency)", r"update_interval$"),
        (r"batch[ _]?size|批次|批量|批大小|\bbatch(es)?\b", r"batch_size$|minibatch_rows$|batch_size_per_rank$"),
        (r"并行环境|环境数量|环境并行|parallel env|number of env|more env", r"num_envs$|num_processes$"),
        (r"混合精度|半精度|\bAMP\b|mixed.precision|\bbf16\b|\bfp16\b", r"mixed_precision$|use_amp$|precision$"),
        (r"学习率|learning rate", r"(^|[._])(actor_|a_)?lr$|learning_rate$"),
        (r"缓冲区|replay buffer|buffer capacity", r"capacity$|replay_size$"),
        (r"dataloader.workers?|数据加载.{0,3}worker|data.load\w* workers?", r"dataloader_num_workers$|loader_threads$"),
        (r"梯度累积|gradient accumulation", r"gradient_accumulation"),
        (r"模型编译|torch\.compile|\bcompil", r"compile_model$|compile$"),
        (r"set_detect_anomaly|异常检测|anomaly detection", r"detect_anomaly$"),
        (r"cudnn\W?deterministic|非确定性|non-?deterministic", r"cudnn_deterministic$"),
        (r"cudnn\W?benchmark|cudnn ?自动调优", r"cudnn_benchmark$"),
        (r"gradient checkpointing|梯度检查点", r"gradient_checkpointing$"),
    )
)
"""(ordinary term, names of options that it means)."""
OFF = re.compile(r"禁用|关闭|不使用|\b(disabl|without|turn(ing)? off|false)", re.I)
DEFAULT_LABEL = re.compile(r"默认|原始|\bdefault\b|\boriginal\b|\bbaseline\b|\bbefore\b", re.I)
LABELLED = re.compile(r"^([^:：]{1,30})\**\s*[:：]\s*([\d][\d.,eE-]*)")
NAME = re.compile(r"(`)?(?<![\w.])(?:--)?([A-Za-z_][\w.-]*[\w])(=)?", re.ASCII)
FLAG = re.compile(r"(?<![\w-])--([A-Za-z_][\w.-]*)\s+(\d[\w.+-]*\w|\d)", re.ASCII)
FIRST_NUMBER = re.compile(r"^\W*(\d[\d.,]*(?:e-?\d+)?)", re.I)


@dataclass(frozen=True)
class Named:
    """An option that a text names.

    Attributes:
        name: Its name; "" if the text names none.
        value: Its value in this text; "" if the text states none.
        before: The earlier value in this text; "" if the text states none.
    """

    name: str = ""
    value: str = ""
    before: str = ""


@dataclass
class OptionTable:
    """All options of a guide and their values.

    Attributes:
        recipe: The recipe of the guide.
        mentions: Values in commands, YAML and assignments.
        defaults: Option -> value that the guide calls its default or earlier value.
    """

    recipe: GuideRecipe
    mentions: list[Mention] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)

    def read(self, lines: list[str], blocks: Sequence[Block], commands: Sequence[Command]) -> None:
        """Collects the mentions and the default values of a guide."""
        for command in commands:
            if command.kind in ("train", "yaml"):
                self.mentions += [each for each in mentions_in(command) if self.recipe.knows(each.name)]
        for block in blocks:
            for number in range(block.start, block.end):
                if block.kind not in ("code", "heading"):
                    for match in ASSIGNMENT.finditer(lines[number]):
                        if self.recipe.knows(match[1]):
                            self.mentions.append(Mention(number + 1, block.section, match[1], match[2]))
            if block.kind == "table":
                self._read_table(lines, block)
        for mention in self.mentions:
            if mention.before:
                self.defaults.setdefault(mention.name, mention.before)

    def _read_table(self, lines: list[str], block: Block) -> None:
        """Reads a table whose first column has the values of one option, which its header names."""
        header = cells(lines[block.start])
        named = self.named_in(header[0]).name if header else ""
        if not named:
            return
        for number in range(block.start + 2, block.end):
            first = cells(lines[number])[0]
            if match := FIRST_NUMBER.match(first):
                self.mentions.append(Mention(number + 1, block.section, named, match[1]))
                if DEFAULT_LABEL.search(first):
                    self.defaults.setdefault(named, match[1])

    @property
    def subject(self) -> str:
        """The option of which the guide has more mentions than of all others; "" if there is none."""
        counts = Counter(each.name for each in self.mentions).most_common(1)
        return counts[0][0] if counts and counts[0][1] * 2 > len(self.mentions) else ""

    def named_in(self, text: str) -> Named:
        """Returns the option that a text names. If it names several, the subject of the guide is preferred."""
        found: dict[str, str] = {}
        for match in (*ASSIGNMENT.finditer(text), *FLAG.finditer(text)):
            if self.recipe.knows(match[1]):
                found.setdefault(match[1], match[2])
        for match in NAME.finditer(text):
            plain = match[2]
            written_as_code = bool(match[1]) or "_" in plain or bool(match[3])
            if written_as_code and plain not in found and self.recipe.knows(plain):
                found[plain] = ""
        if not found:
            name = next((name for term, names in TERMS if term.search(text) and (name := self._meaning(names))), "")
            if not name:
                return Named()
            found[name] = ""
        subject = self.subject
        name = subject if subject in found else next(iter(found))
        value = found[name]
        change = re.search(r"(\d[\d.,eE-]*)\S{0,3}\s*(?:→|->)\s*(\d[\d.,eE-]*)", text) if len(found) == 1 else None
        if change and not value:
            return Named(name, _number(change[2]), _number(change[1]))
        before = BEFORE.search(text)
        return Named(name, value, next(filter(None, before.groups()), "") if before and value else "")

    def _meaning(self, names: re.Pattern[str]) -> str:
        """The option of the guide, or else of the recipe, whose name matches a pattern; "" if there is none."""
        known = next((each.name for each in self.mentions if names.search(each.name)), "")
        return known or next((path for path in self.recipe.fields if names.search(path)), "")

    def section_values(self, lines: list[str], blocks: Sequence[Block], section: int) -> tuple[str, str]:
        """Returns (earlier value, new value) that the list of one section states; empty texts without them.

        Args:
            lines: All lines of the guide.
            blocks: Blocks of the section.
            section: Index of the section.
        """
        before = after = ""
        for block in blocks:
            text = re.sub(r"^\s*[-*+]\s+|\*\*|`", "", lines[block.start])
            match = LABELLED.match(text) if block.kind == "item" and block.section == section else None
            if match and DEFAULT_LABEL.search(match[1]):
                before = before or _number(match[2])
            elif match and before:
                after = after or _number(match[2])
        return (before, after) if after else ("", "")

    def value_of(self, name: str, section: int, without: str) -> str:
        """Returns the value of an option that a section or else the guide recommends; "" if there is none.

        Args:
            name: The option.
            section: Section of the claim.
            without: Value to compare with, which is no recommendation.
        """
        same = [each for each in self.mentions if each.name == name and each.value not in ("", without)]
        near = [each.value for each in same if each.section == section]
        if near:
            return near[0]
        common = Counter(each.value for each in same).most_common(1)
        return common[0][0] if common else ""

    def stage_words(self, name: str) -> tuple[str, ...]:
        """Returns the arguments next to the first mention of an option that select a stage."""
        return next((each.stage_words for each in self.mentions if each.name == name and each.stage_words), ())


def _number(text: str) -> str:
    return text.replace(",", "").strip(".-")
