"""Imports go down the layers only, form no cycle, and keep simulators and torch out of the command line's start."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import powerband

SOURCE = Path(powerband.__file__).parents[1]
LAYERS = [
    {"core"},
    {"data"},
    {"nets"},
    {"algos", "envs"},
    {"loops", "tune", "doctor", "report"},
    {"attach", "results"},
    {"recipes", "bench"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PROTOCOLS_ONLY = {"loops", "tune"}
"""Folders that use environments and algorithms through their protocols and never by name."""
SIMULATORS = {"gymnasium", "mujoco", "metaworld", "envpool", "libero", "robosuite", "habitat_sim"}
SUBCLASSES = {"powerband.envs.adapters.action_mask", "powerband.envs.adapters.parallel_env"}
"""Modules that subclass a class of a simulator package. Other modules import them inside functions only."""
REFERENCE = re.compile(r"powerband(\.\w+)+(:\w+)?")
"""A string such as ``powerband.algos.sac:SAC``: the algorithm tables import by it, so it counts as an import."""


def module_name(file: Path) -> str:
    """Dotted name of a file relative to the source folder."""
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}


def imports(tree: ast.AST, top_only: bool = False) -> Iterator[str]:
    """Yields every imported module: inside functions, under TYPE_CHECKING and in strings too.

    Args:
        tree: Syntax tree of a file.
        top_only: Leave out imports inside functions.
    """
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: use absolute imports"
            for name in node.names:
                submodule = f"{node.module}.{name.name}"
                yield submodule if submodule in MODULES else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and REFERENCE.fullmatch(node.value):
            yield node.value.split(":")[0]
        if not (top_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            pending.extend(ast.iter_child_nodes(node))


def violations(source: str, module: str) -> list[str]:
    """Returns one line for each import of `module`, given as source text, that breaks a layer rule."""
    tree, parts = ast.parse(source), module.split(".")
    own, found = parts[1], []
    for other in imports(tree):
        other_parts = other.split(".")
        if other_parts[0] != "powerband" or len(other_parts) < 2 or other_parts[1] not in LEVEL:
            continue
        if other_parts[1] != own and LEVEL[other_parts[1]] >= LEVEL[own]:
            found.append(f"{module} imports {other}: imports go down only")
        if own in PROTOCOLS_ONLY and other_parts[1] in ("algos", "envs"):
            found.append(f"{module} imports {other}: this layer knows protocols only")
        if own == "recipes" and other_parts[1] == "recipes" and other_parts[2:3] != parts[2:3]:
            found.append(f"{module} imports {other}: a recipe never imports another recipe")
    if own != "__main__":
        tops = set(imports(tree, top_only=True))
        lazy = SUBCLASSES | (set() if module in SUBCLASSES else SIMULATORS)
        early = sorted(name for name in tops if name in lazy or name.split(".")[0] in lazy)
        found += [f"{module} imports {name} outside a function" for name in early]
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            start = stack.index(module)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                found.append(sorted(component))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def test_imports_go_down_only() -> None:
    found = []
    for module, path in MODULES.items():
        if module == "powerband":
            continue
        assert module.split(".")[1] in LEVEL, f"{module} belongs to no layer"
        found += violations(path.read_text(encoding="utf-8"), module)
    assert found == []


def test_no_import_cycle() -> None:
    graph = {
        module: {name for name in imports(ast.parse(path.read_text(encoding="utf-8"))) if name in MODULES} - {module}
        for module, path in MODULES.items()
    }
    assert cycles(graph) == []


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("powerband.core.file", "from powerband.data.types import Step"),
        ("powerband.data.file", "from powerband import nets"),
        ("powerband.algos.file", "def f():\n    import powerband.envs.workers"),
        ("powerband.algos.file", "MODEL = 'powerband.recipes.snakes.train:train'"),
        ("powerband.loops.file", "from powerband.algos import ppo"),
        ("powerband.loops.file", "from powerband.report import page"),
        ("powerband.envs.file", "import mujoco"),
        ("powerband.recipes.uav.file", "from powerband.recipes.snakes import env"),
        ("powerband.core.file", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import powerband.cli.main"),
        ("powerband.envs.file", "from powerband.envs.adapters.action_mask import ActionMask"),
        ("powerband.envs.file", "try:\n    import gymnasium as gym\nexcept ImportError:\n    gym = None"),
    ],
)
def test_the_rule_refuses(module: str, source: str) -> None:
    assert violations(source, module)


def test_the_rule_allows() -> None:
    source = "from powerband.core.config.sizes import per_rank\ndef f():\n    import mujoco"
    assert violations(source, "powerband.envs.file") == []
    assert violations("from powerband.recipes.uav import env", "powerband.recipes.uav.train") == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["trian"]])
def test_help_does_without_torch(words: list[str]) -> None:
    code = (
        "import sys, powerband.cli.main as cli; cli.main(sys.argv[1:]); "
        "assert not {'torch', 'numpy', 'numba', 'tyro'} & set(sys.modules), 'a heavy import'"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    result = subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
