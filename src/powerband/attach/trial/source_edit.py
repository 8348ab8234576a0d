"""Source edit: unified diffs that change one call in the user's code."""

from __future__ import annotations

import ast
import difflib
import io
from collections.abc import Sequence
from pathlib import Path

Edit = tuple[int, int, str]
"""Start and end in the source text in characters, and the new text."""


def keyword_diff(where: str, names: Sequence[str], keyword: str, value: str, position: int | None = None) -> str:
    """Returns the diff that sets an argument of a call by its name; "" if the call cannot be changed safely.

    Args:
        where: Place of the call as ``path:line``.
        names: Names of the called class or function, without modules.
        keyword: Name of the argument.
        value: Its value as source text.
        position: Index of the argument in a call that passes it without its name; None if its name is necessary.
    """
    source, call = _call_at(where, names)
    if call is None or any(each.arg is None for each in call.keywords):  # **kwargs may contain it
        return ""
    if position is not None:
        if any(isinstance(each, ast.Starred) for each in call.args[: position + 1]):  # *args may contain it
            return ""
        if len(call.args) > position:
            return _diff(where, source, [(*_span(source, call.args[position]), value)])
    for each in call.keywords:
        if each.arg == keyword:
            return _diff(where, source, [(*_span(source, each.value), value)])
    arguments = [*call.args, *(each.value for each in call.keywords)]
    if arguments:  # right after the last one, because a comment may follow
        end, text = max(_span(source, each)[1] for each in arguments), f", {keyword}={value}"
    else:
        end, text = source.index("(", _span(source, call.func)[1]) + 1, f"{keyword}={value}"
    if not _has_keyword(source[:end] + text + source[end:], call, keyword):  # such as a last argument in brackets
        return ""
    return _diff(where, source, [(end, end, text)])


def argument_diff(where: str, names: Sequence[str], value: str) -> str:
    """Returns the diff that sets the only positional argument of a call; "" if the call has another form."""
    source, call = _call_at(where, names)
    if call is None or len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        return ""
    return _diff(where, source, [(*_span(source, call.args[0]), value)])


def class_diff(where: str, old: str, new: str) -> str:
    """Returns the diff that calls another class, and imports it if its name is imported alone."""
    source, call = _call_at(where, [old])
    if call is None:
        return ""
    edits: list[Edit] = []
    end = _span(source, call.func)[1]
    edits.append((end - len(old), end, new))
    if isinstance(call.func, ast.Name):
        imports = [
            alias
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name == old and alias.asname is None
        ]
        if not imports:
            return ""
        start, end = _span(source, imports[0])
        edits.append((start, end, f"{new}, {old}"))
    return _diff(where, source, edits)


def _has_keyword(changed: str, call: ast.Call, keyword: str) -> bool:
    """Returns whether the call that began at the place of `call` has a keyword argument in the changed source."""
    tree = _parsed(changed)
    return tree is not None and any(
        each.arg == keyword
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (node.lineno, node.col_offset) == (call.lineno, call.col_offset)
        and ast.dump(node.func) == ast.dump(call.func)
        for each in node.keywords
    )


def _parsed(source: str) -> ast.Module | None:
    """Returns the syntax tree; None if the source is no valid Python."""
    try:
        return ast.parse(source)
    except (ValueError, SyntaxError):
        return None


def _lines(source: str) -> list[str]:
    """Returns the lines as the parser counts them: a form feed, for example, ends no line."""
    return list(io.StringIO(source))


def _call_at(where: str, names: Sequence[str]) -> tuple[str, ast.Call | None]:
    """Returns the source text and the innermost call of one of `names` at a place."""
    path, _, line = where.rpartition(":")
    try:
        with open(path, encoding="utf-8", newline="") as file:  # with the line ends of Windows, which a diff has too
            source = file.read()
    except (OSError, ValueError):
        return "", None
    tree = _parsed(source)
    if tree is None:
        return "", None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= int(line) <= (node.end_lineno or node.lineno)
        and _name(node.func) in names
    ]
    return source, min(calls, key=lambda call: (call.end_lineno or 0) - call.lineno, default=None)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _span(source: str, node: ast.expr | ast.alias) -> tuple[int, int]:
    """Returns start and end of a node in characters; the parser counts bytes within a line."""
    lines = _lines(source)

    def position(line: int, column: int) -> int:
        before = sum(len(text) for text in lines[: line - 1])
        return before + len(lines[line - 1].encode()[:column].decode())

    return position(node.lineno, node.col_offset), position(node.end_lineno or 0, node.end_col_offset or 0)


def _diff(where: str, source: str, edits: Sequence[Edit]) -> str:
    path = Path(where.rpartition(":")[0])
    changed = source
    for start, end, text in sorted(edits, reverse=True):
        changed = changed[:start] + text + changed[end:]
    try:
        name = path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        name = path.as_posix()
    if changed == source:
        return ""
    if _parsed(changed) is None:
        return ""
    lines = difflib.unified_diff(_lines(source), _lines(changed), f"a/{name}", f"b/{name}", n=1)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
