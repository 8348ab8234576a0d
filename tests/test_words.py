"""Words: expressions that the glossary retired do not come back.

Three scopes: names of modules, identifiers (options included), and prose, which is docstrings, comments, messages and
the English pages. Ordinary words such as part, case or there are retired as names only.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import powerband

ROOT = Path(powerband.__file__).parents[2]
SOURCES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/**/*.py")])
DOCS = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if not path.name.endswith("zh-CN.md"))
QUOTES_RETIRED_WORDS = ("glossary.md",)

MODULES = re.compile(r"^(settled|part|apart|turn|case|share|attached|kept|told|said|hand|owed|room|.*_words|words)$")

IDENTIFIERS = {
    "Walk": "RolloutCollector",
    "Taken": "CollectedStep",
    "Learning": "name the settings",
    "OutOfRoom": "OutOfMemory",
    "Crew": "WorkerPool",
    "crew": "pool",
    "CountedQuestions": "SynchronisationCounter",
    "Kept": "DiskCache",
    "Attached": "StateRegistry",
    "owed": "pending",
    "speak": "set_instructions",
    "know": "set_statistics",
    "there": "mask",
    "warmup": "learning_starts or lr_warmup_updates",
    "by_turns": "double_buffer",
    "made_anew": "restarted",
    "mended": "repaired",
    "given_back": "discarded",
    "said": "message, or name the content",
    "told": "name the content",
}

PROSE = {
    r"(?<!there )\bis no (recipe|text|number|setting|word|option|file|stage|command|value)\b": "Unknown ..., invalid",
    r"\b(made|start|starts|started|begin|begins|written|drawn) anew\b": "again, restart",
    r"\b[Mm]end(s|ed|ing)?\b": "repair, fix",
    r"\bgiven back\b": "discarded, returned",
    r"\bby turns\b|\btake turns\b": "double-buffered, alternating",
    r"\bout of room\b": "out of memory",
    r"\brow in hand\b|\bin hand\b": "active row",
    r"\bwhat (it|they|this) (is|are) against\b": "compared with, baseline",
    r"\btold (the other|its own|another) (task|one)\b": "with the instruction of",
    r"\bwhat a user can right\b": "user error",
    r"\bquestions? (to|of) tensors?\b|\basks tensors\b": "host-device synchronisation",
    r"\bso many\b": "the number",
    r"\bone an? (rank|worker|core|machine|process|step|update|episode|board|row|environment|task|camera)\b": "one per",
    r"\bbeside\b": "next to, and, besides",
    r"\bin words\b": "as text",
    r"\bas if nothing (had )?happened\b": "unchanged",
}


def docstrings_comments_and_messages(source: str) -> list[tuple[int, str]]:
    """(line, text) of the comments and of the strings of a module that contain a space."""
    texts = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            texts.append((node.lineno, node.value))
    return texts


def names(source: str) -> set[tuple[int, str]]:
    """(line, name) of every name that a module defines: classes, functions, arguments, attributes and variables."""
    found: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add((line, node.name))
        elif isinstance(node, ast.arg):
            found.add((line, node.arg))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add((line, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add((line, node.attr))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_uses_the_words_of_the_glossary(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not MODULES.match(path.stem), (
        f"{path.stem}.py says nothing about its subject; docs/glossary.md has the words"
    )
    retired = [
        f"{path.name}:{line}: {name} -> {IDENTIFIERS[name.lstrip('_')]}"
        for line, name in sorted(names(source))
        if name.lstrip("_") in IDENTIFIERS
    ]
    for line, text in docstrings_comments_and_messages(source):
        retired += [f"{path.name}:{line}: {found} -> {use}" for found, use in retired_in(text)]
    assert not retired, "\n".join(retired)


@pytest.mark.parametrize(
    "page",
    [page for page in DOCS if page.name not in QUOTES_RETIRED_WORDS],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    retired = [f"{found} -> {use}" for found, use in retired_in(page.read_text(encoding="utf-8"))]
    assert not retired, "\n".join(retired)


def retired_in(text: str) -> list[tuple[str, str]]:
    """(expression, replacement) of each retired expression in a text."""
    flat = re.sub(r"\s+", " ", text)
    return [(match.group(0), use) for pattern, use in PROSE.items() for match in re.finditer(pattern, flat)]


def test_retired_words_are_found() -> None:
    assert retired_in("'x' is no recipe, and one a rank\n is made anew.") != []
    assert ("(2, 'crew')") == str(next(iter(names("class A:\n    crew = 1\n") - {(1, "A")})))
    assert retired_in("There is no disk. A part of the case is read from a file.") == []
