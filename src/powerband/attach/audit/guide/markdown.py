"""Reading of Markdown as blocks of lines: headings, paragraphs, list items, tables and fenced code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from powerband.core.config.texts import SHOWN_PATH, shortened
from powerband.core.errors import ConfigError

MAX_BYTES = 2 * 2**20
"""Largest guide in bytes."""
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+-]*)")
HEADING = re.compile(r"^(#{1,6})\s+(.*)")
ITEM = re.compile(r"^(\s*)([-*+]|\d{1,9}[.)])(\s+)\S")
QUOTE = re.compile(r"^\s*>")
DELIMITER_ROW = re.compile(r"^[\s|:-]*-[\s|:-]*$")


@dataclass(frozen=True)
class Block:
    """Consecutive lines of one kind.

    Attributes:
        kind: Kind of the lines.
        start: Index of the first line, from 0.
        end: Index after the last line.
        language: Language of fenced code, such as ``bash``; else "".
        indent: Columns before text that continues the block.
        section: Index of the heading above, counted from 1; 0 before the first heading.
        headings: Texts of the headings above, the title first.
    """

    kind: Literal["heading", "paragraph", "item", "table", "code", "quote"]
    start: int
    end: int
    language: str
    indent: int
    section: int
    headings: tuple[str, ...]

    @property
    def heading(self) -> str:
        """The nearest heading; "" before the first one."""
        return self.headings[-1] if self.headings else ""


def read_guide(path: Path) -> str:
    """Returns the text of a guide, with its line ends.

    Raises:
        ConfigError: The file is unreadable, is not UTF-8 text, or is too large.
    """
    shown = shortened(path, SHOWN_PATH)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(
                f"{shown} has {size / 2**20:.1f} MiB; a guide has at most {MAX_BYTES >> 20} MiB. "
                f"Name a file with the part to audit."
            )
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{shown} is not UTF-8 text. Name a Markdown file.") from None
    except OSError as error:
        raise ConfigError(f"{shown} cannot be read ({error.strerror}). Name a Markdown file.") from None


def blocks_of(lines: list[str]) -> list[Block]:
    """Returns the blocks of a text in their order. Blank lines belong to no block, except in code.

    Args:
        lines: Lines without their ends.
    """
    found: list[Block] = []
    levels: list[tuple[int, str]] = []
    section, position = 0, 0
    while position < len(lines):
        line, start = lines[position], position
        if not line.strip():
            position += 1
            continue
        language, indent = "", len(line) - len(line.lstrip())
        kind: Literal["heading", "paragraph", "item", "table", "code", "quote"]
        if match := FENCE.match(line):
            kind, language = "code", match[3].lower()
            closing = re.compile(rf"^\s*{re.escape(match[2])}{match[2][0]}*\s*$")
            position = next((i + 1 for i in range(start + 1, len(lines)) if closing.match(lines[i])), len(lines))
        elif match := HEADING.match(line):
            kind, position = "heading", start + 1
            depth = len(match[1])
            levels = [(level, text) for level, text in levels if level < depth] + [(depth, match[2].strip())]
            section += 1
        elif _begins_table(lines, start):
            kind = "table"
            position = next((i for i in range(start + 2, len(lines)) if "|" not in lines[i]), len(lines))
        else:
            match = ITEM.match(line)
            kind = "item" if match else "quote" if QUOTE.match(line) else "paragraph"
            indent = len(match[1]) + len(match[2]) + len(match[3]) if match else indent
            position = start + 1
            while position < len(lines) and _continues(lines, position, kind):
                position += 1
        found.append(Block(kind, start, position, language, indent, section, tuple(text for _, text in levels)))
    return found


def _begins_table(lines: list[str], start: int) -> bool:
    following = lines[start + 1] if start + 1 < len(lines) else ""
    return "|" in lines[start] and "|" in following and bool(DELIMITER_ROW.match(following))


def _continues(lines: list[str], position: int, kind: str) -> bool:
    """Whether a line continues a paragraph, list item or quote."""
    line = lines[position]
    if not line.strip() or FENCE.match(line) or HEADING.match(line) or ITEM.match(line):
        return False
    return kind == "quote" if QUOTE.match(line) else not _begins_table(lines, position)


def cells(line: str) -> list[str]:
    """Returns the cells of a row of a table, without their marks for bold text."""
    row = line.strip().removeprefix("|").removesuffix("|").replace("\\|", "\0")
    return [cell.replace("\0", "|").replace("**", "").strip() for cell in row.split("|")]


def language_of(text: str) -> Literal["en", "zh"]:
    """Returns the language of a text: Chinese if one letter in twenty is a Chinese character."""
    chinese = len(re.findall(r"[\u4e00-\u9fff]", text))
    return "zh" if chinese * 20 > len(re.findall(r"[A-Za-z\u4e00-\u9fff]", text)) else "en"
