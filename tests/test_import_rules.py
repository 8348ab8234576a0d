"""Imports go down only, simulators are imported inside functions, and ``--help`` does without torch."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import powerband

PACKAGE = Path(powerband.__file__).parent
LAYERS = [
    {"core"},
    {"data"},
    {"nets"},
    {"algos", "envs"},
    {"loops", "tune", "doctor", "report"},
    {"recipes", "bench"},
    {"catalogue"},
    {"measuring"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names} | {"__main__": len(LAYERS)}
PROTOCOLS_ONLY = {"loops", "tune"}
"""What sees an environment or an algorithm through its protocol and never by name."""
SIMULATORS = {"gymnasium", "mujoco", "metaworld", "envpool", "libero", "robosuite", "habitat_sim"}


def imports(tree: ast.Module, own: Path, everywhere: bool) -> Iterator[str]:
    """Modules that `own` imports: at its top alone, or in functions too; never those for type checkers only."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ["powerband", *own.parts][: -node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{name.name}" for name in node.names)
        inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not everywhere
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not inner and not typing_only:
            waiting.extend(ast.iter_child_nodes(node))


def part(module: str) -> str | None:
    """Top part of the package that a module belongs to; None for other packages and for the package itself."""
    names = module.split(".")
    return names[1] if names[0] == "powerband" and len(names) > 1 and names[1] in LEVEL else None


def faults(source: str, file: Path) -> list[str]:
    """What the imports of `file`, a path inside the package, break."""
    tree, own = ast.parse(source), file.parts[0].removesuffix(".py")
    found = []
    for module in imports(tree, file, everywhere=True):
        other = part(module)
        if other is None or other == own:
            continue
        if LEVEL[other] >= LEVEL[own]:
            found.append(f"{own} imports {module}: imports go down only")
        if own in PROTOCOLS_ONLY and other in ("algos", "envs"):
            found.append(f"{own} imports {module}: it sees protocols only")
    if own != "__main__":
        tops = {module.split(".")[0] for module in imports(tree, file, everywhere=False)}
        found += [f"{module} is imported outside a function" for module in sorted(tops & SIMULATORS)]
    return found


FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if len(path.relative_to(PACKAGE).parts) > 1)


@pytest.mark.parametrize(
    "file", [*FILES, *map(Path, ("catalogue.py", "measuring.py", "cli.py", "__main__.py"))], ids=str
)
def test_imports_go_down_only(file: Path) -> None:
    assert file.parts[0].removesuffix(".py") in LEVEL, f"{file} belongs to no layer"
    assert faults((PACKAGE / file).read_text(encoding="utf-8"), file) == []


@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("core", "from powerband.data.types import Step"),
        ("data", "from powerband import nets"),
        ("algos", "def f():\n    import powerband.envs.snakes"),
        ("loops", "from powerband.algos import ppo"),
        ("loops", "from powerband.report import page"),
        ("envs", "import mujoco"),
        ("envs", "from ..loops import evaluate"),
        ("envs", "try:\n    import gymnasium as gym\nexcept ImportError:\n    gym = None"),
    ],
)
def test_the_rule_sees(own: str, source: str) -> None:
    assert faults(source, Path(own, "file.py"))


def test_the_rule_allows() -> None:
    source = (
        "from powerband import __version__\nfrom powerband.core.scaling import per_rank\ndef f():\n    import mujoco"
    )
    assert faults(source, Path("envs/file.py")) == []
    assert faults("from . import seeds\nfrom ..spec import shape", Path("envs/snakes/file.py")) == []
    assert (
        faults("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import powerband.cli", Path("core/file.py"))
        == []
    )


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["trian"]])
def test_help_does_without_torch(words: list[str]) -> None:
    code = (
        "import sys, powerband.cli; powerband.cli.main(sys.argv[1:]); "
        "assert not {'torch', 'numpy', 'numba', 'tyro'} & set(sys.modules), 'a heavy import'"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    result = subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
