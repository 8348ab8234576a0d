"""Commands and settings in the code of a guide: shell lines, YAML, and assignments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from powerband.attach.audit.guide.markdown import Block
from powerband.core.config.flags import Flag, from_arguments
from powerband.core.errors import ConfigError

SHELLS = {"bash", "sh", "shell", "zsh", "console", "powershell", "ps1", "cmd", "bat"}
CONTINUED = re.compile(r"[\\`]\s*(#.*)?$")
COMMENT = re.compile(r"(?:^|\s)(?:#|//)\s*(.*)|←\s*(.*)")
ASSIGNMENT = re.compile(r"""(?<![\w./-])(?:--)?([A-Za-z_][\w.-]*)\s*=\s*["']?([\w.+,/:-]*[\w/])""", re.ASCII)
YAML_LINE = re.compile(r"^(\s*)([A-Za-z_][\w.-]*)\s*:(?:\s+(.*))?$")
INTERPRETER = re.compile(r"^(python[\d.]*|pythonw|py|uv|poetry|srun|nohup|exec|time|nice|run)$")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
RANK_COUNT = re.compile(r"--n(?:proc_per_node|um_processes|um_gpus)[= ](\d+)|--nproc-per-node[= ](\d+)")
EVALUATION = re.compile(r"(^|[_/])(eval|evaluate|evaluation)")
CHECK = re.compile(r"(^|[_/])(test|check)[_a-z]*\.py$")


@dataclass(frozen=True)
class Command:
    """One command or one YAML block of a guide.

    Attributes:
        line: Number of its first line, from 1.
        block: The fenced code that contains it.
        text: The text, on one line for a command.
        kind: ``train`` and ``eval`` take options of a recipe, ``yaml`` is a file of settings, ``tool`` is a command of
            the machine, ``script`` is a file that the guide does not show, and ``text`` is other text.
        words: Command-line arguments of a recipe.
        ranks: Processes that a launcher starts; 0 without one.
    """

    line: int
    block: Block
    text: str
    kind: str
    words: tuple[str, ...] = ()
    ranks: int = 0


@dataclass(frozen=True)
class Mention:
    """A value of an option in the guide.

    Attributes:
        line: Number of its line, from 1.
        section: Section of its block.
        name: Name of the option, as in the guide.
        value: The value as text.
        stage_words: Arguments of its block that select a stage or an algorithm of the recipe.
        before: Value that a comment calls the earlier one; "" without one.
    """

    line: int
    section: int
    name: str
    value: str
    stage_words: tuple[str, ...] = ()
    before: str = ""


BEFORE = re.compile(
    r"从\s*([\d.eE+-]+)\s*(?:增加|减少|降低|提高|减|改|调|加|升|降)?\S{0,2}\s*到"
    r"|\bfrom ([\d.eE+-]+) to\b|([\d.eE+-]+)\s*(?:→|->)"
)


def comment_of(line: str) -> str:
    """Returns the comment at the end of a line of code; "" without one."""
    match = COMMENT.search(line)
    return (match[1] or match[2] or "").strip() if match else ""


def commands_in(block: Block, lines: list[str]) -> Iterator[Command]:
    """Yields the commands of fenced code, or its YAML as one command.

    Args:
        block: A block of code.
        lines: All lines of the guide.
    """
    inside = range(block.start + 1, block.end - 1 if block.end - block.start > 1 else block.end)
    content = [lines[i] for i in inside]
    plain = [text for line in content if (text := line.split("#")[0].rstrip())]
    as_yaml = bool(plain) and all(YAML_LINE.match(line) or line.lstrip().startswith("- ") for line in plain)
    if block.language in ("yaml", "yml") or (as_yaml and block.language in SHELLS):
        text = "\n".join(content)
        if plain:
            yield Command(block.start + 2, block, text, "yaml")
        return
    if block.language not in SHELLS:
        return
    joined, first = "", 0
    for number in inside:
        line = lines[number]
        first = first or number + 1
        text = CONTINUED.sub("", line) if CONTINUED.search(line) else re.sub(r"(^|\s)#.*", "", line)
        joined = f"{joined} {text}".strip()
        if CONTINUED.search(line) and not line.lstrip().startswith("#"):
            continue
        if joined:
            yield _command(joined, first, block)
        joined, first = "", 0
    if joined:
        yield _command(joined, first, block)


def _command(text: str, line: int, block: Block) -> Command:
    try:
        parts = shlex.split(text, comments=True)
    except ValueError:
        parts = text.split()
    while parts and re.match(r"^[A-Z_][A-Z0-9_]*=", parts[0]):
        parts = parts[1:]
    parts = [part for part in parts if part != "..."]
    ranks = next((int(match[1] or match[2]) for match in [RANK_COUNT.search(text)] if match), 0)
    if not parts:
        return Command(line, block, text, "tool")
    if parts[0].startswith("--"):
        return Command(line, block, text, "train", tuple(parts))
    if parts[:2] in (["powerband", "train"], ["powerband", "eval"]):
        return Command(line, block, text, parts[1], tuple(parts[3:]))
    if not re.match(r"[\w./~-]", parts[0], re.ASCII):
        return Command(line, block, text, "text")
    script = next((i for i, part in enumerate(parts) if part.endswith(".py")), None)
    launcher = next((each for each in LAUNCHERS if each in parts), "")
    if parts[0] == "accelerate" and script is None:
        return Command(line, block, text, "train", tuple(part for part in parts[1:] if part != "launch"))
    if parts[0] in ("bash", "sh") or parts[0].endswith(".sh"):
        return Command(line, block, text, "script")
    if script is None or not (launcher or INTERPRETER.match(parts[0]) or parts[0].endswith(".py")):
        return Command(line, block, text, "tool")
    if CHECK.search(parts[script]):
        return Command(line, block, text, "tool")
    before = [part for part in parts[:script] if part not in ("launch", *LAUNCHERS)]
    own = before if launcher == "accelerate" else []
    kind = "eval" if EVALUATION.search(parts[script]) else "train"
    return Command(line, block, text, kind, (*own, *parts[script + 1 :]), 0 if own else ranks)


def flags_of(command: Command) -> list[Flag]:
    """Returns the options of a command; an empty list if its arguments are no options."""
    if command.kind == "yaml":
        return [Flag(name, value, str(line)) for line, name, value, _ in yaml_settings(command)]
    words = list(command.words)
    if words and "=" not in words[0] and not words[0].startswith("-"):
        words = words[1:]
    try:
        return from_arguments(words)
    except ConfigError:
        return []


def yaml_settings(command: Command) -> Iterator[tuple[int, str, str, str]]:
    """Yields (line, dotted name, value, comment) of each value of a YAML block, read line by line."""
    parents: list[tuple[int, str]] = []
    for offset, line in enumerate(command.text.split("\n")):
        code = re.sub(r"(^|\s)#.*", "", line).rstrip()
        match = YAML_LINE.match(code)
        if match is None:
            continue
        parents = [(indent, name) for indent, name in parents if indent < len(match[1])]
        if match[3]:
            name = ".".join([name for _, name in parents] + [match[2]])
            yield command.line + offset, name, match[3].strip().strip("\"'"), comment_of(line)
        else:
            parents.append((len(match[1]), match[2]))


def mentions_in(command: Command) -> list[Mention]:
    """Returns the values of options that a command or a YAML block sets."""
    section = command.block.section
    if command.kind == "yaml":
        rows = list(yaml_settings(command))
        words = tuple(f"{name}={value}" for _, name, value, _ in rows)
        found = []
        for line, name, value, comment in rows:
            match = BEFORE.search(comment)
            before = next(filter(None, match.groups()), "") if match else ""
            found.append(Mention(line, section, name, value, words, before))
        return found
    named = []
    for flag in flags_of(command):
        value = flag.value if isinstance(flag.value, str) else ",".join(flag.value or ("true",))
        named.append(Mention(command.line, section, flag.name, value, command.words))
    return named
