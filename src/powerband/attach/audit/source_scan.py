"""Source scan: where the user's code names an option, and which values it compares the option with."""

from __future__ import annotations

import ast
import contextlib
import os
from pathlib import Path
from typing import Any

from powerband.attach.audit.options import ScriptOption
from powerband.attach.audit.working_copy import is_linked

MOST_FILES = 2000


class SourceScan:
    """The syntax trees of the Python files of a folder.

    Args:
        folder: The user's working folder.
    """

    def __init__(self, folder: Path) -> None:
        self.trees: dict[str, ast.AST] = {}
        self.text = ""
        for here, names, files in os.walk(folder):
            names[:] = [name for name in names if not is_linked(here, name) and not name.startswith((".", "__"))]
            for file in files:
                if file.endswith(".py") and len(self.trees) < MOST_FILES:
                    path = Path(here) / file
                    with contextlib.suppress(SyntaxError, ValueError, OSError):
                        text = path.read_text(encoding="utf-8", errors="replace")
                        self.trees[str(path.relative_to(folder))] = ast.parse(text)
                        self.text += text

    def places(self, option: ScriptOption) -> list[str]:
        """Returns ``file:line`` of each attribute and text that names an option, except its definition."""
        name, found = option.last_name, []
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                named = isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
                named = named or isinstance(node, ast.Constant) and node.value == name
                place = f"{file}:{getattr(node, 'lineno', 0)}"
                if named and place != option.where:
                    found.append(place)
        return sorted(set(found))

    def alternatives(self, option: ScriptOption) -> list[Any]:
        """Returns the texts that the code compares an option with, or uses as keys next to its value."""
        name, value = option.last_name, option.value
        if not isinstance(value, str):
            return []
        found: list[Any] = []
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.Compare) and _names(node.left, name):
                    for other in node.comparators:
                        items = other.elts if isinstance(other, ast.Tuple | ast.List | ast.Set) else [other]
                        found += [item.value for item in items if isinstance(item, ast.Constant)]
                elif isinstance(node, ast.Dict):
                    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
                    if value in keys and all(isinstance(key, str) for key in keys):
                        found += keys
        return [item for item in dict.fromkeys(found) if isinstance(item, str) and item != value]


def _names(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == name
    return isinstance(node, ast.Name) and node.id == name
