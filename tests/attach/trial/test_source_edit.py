"""Diffs of calls in the user's code: they apply with patch, and what cannot be changed safely gives none."""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path

import gymnasium
import pytest
from torch.utils.data import DataLoader

from powerband.attach.trial.change import variables_of_threads
from powerband.attach.trial.permanent import (
    LOADER_POSITIONS,
    MODE_POSITION,
    of_loader,
    of_optimizers,
    of_threads,
    of_vector_env,
)
from powerband.attach.trial.source_edit import argument_diff, class_diff, keyword_diff

SOURCE = """import torch
from gymnasium.vector import SyncVectorEnv
torch.set_num_threads(16)  # änderbar
loader = torch.utils.data.DataLoader(data, batch_size=32,
                                     num_workers=0)
short = DataLoader(data)
many = DataLoader(
    data,
    shuffle=True,
)
passed = DataLoader(data, **options)
envs = SyncVectorEnv([make for _ in range(4)])
made = gym.make_vec("CartPole-v1", num_envs=4)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def applied(diff: str, script: Path) -> list[str]:
    """Applies a diff with git, and returns the changed lines."""
    subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=script.parent, check=True)
    changed = script.read_text(encoding="utf-8").splitlines()
    return [line for line in changed if line not in SOURCE.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (4, "                                     num_workers=4)"),
        (5, "                                     num_workers=4)"),
        (6, "short = DataLoader(data, num_workers=4)"),
        (7, "    shuffle=True, num_workers=4,"),
    ],
)
def test_a_keyword_is_replaced_or_added(line: int, expected: str, script: Path) -> None:
    diff = keyword_diff(f"{script}:{line}", ["DataLoader"], "num_workers", "4")
    assert applied(diff, script) == [expected]


def test_a_diff_of_a_file_with_line_ends_of_windows_applies(script: Path) -> None:
    script.write_bytes(SOURCE.replace("\n", "\r\n").encode())
    subprocess.run(
        ["git", "apply", "-"],
        input=keyword_diff(f"{script}:6", ["DataLoader"], "num_workers", "4").encode(),
        cwd=script.parent,
        check=True,
    )
    assert b"short = DataLoader(data, num_workers=4)\r\n" in script.read_bytes()


def test_threads_classes_functions_and_optimisers(script: Path) -> None:
    assert applied(argument_diff(f"{script}:3", ["set_num_threads"], "2"), script) == [
        "torch.set_num_threads(2)  # änderbar"
    ]
    script.write_text(SOURCE, encoding="utf-8")
    assert applied(class_diff(f"{script}:12", "SyncVectorEnv", "AsyncVectorEnv"), script) == [
        "from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv",
        "envs = AsyncVectorEnv([make for _ in range(4)])",
    ]
    script.write_text(SOURCE, encoding="utf-8")
    change = of_vector_env([{"what": "make_vec", "name": "make_vec", "where": f"{script}:13"}], "async")
    assert applied(change.diff, script) == [
        'made = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="async")'
    ]
    script.write_text(SOURCE, encoding="utf-8")
    fused = of_optimizers([{"name": "AdamW", "where": f"{script}:14"}], "fused")
    assert applied(fused.diff, script)[0].endswith("lr=1e-3, fused=True)")


def test_what_cannot_be_changed_safely_gives_a_sentence(script: Path) -> None:
    passed = of_loader(f"{script}:11", "num_workers", 4)  # the options may contain the argument already
    assert not passed.diff and passed.sentence == "Construct the DataLoader at train.py:11 with num_workers=4."
    assert of_loader(f"{script}:1", "num_workers", 4).sentence and of_loader("", "num_workers", 4).sentence
    assert keyword_diff(f"{script.parent / 'missing.py'}:1", ["DataLoader"], "num_workers", "4") == ""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('make_vec("X", 4, "sync")', 'make_vec("X", 4, "async")'),
        ('make_vec("X", 4)', 'make_vec("X", 4, vectorization_mode="async")'),
        ('make_vec("X", 4, "sync", {}, *wrappers)', 'make_vec("X", 4, "async", {}, *wrappers)'),
        ("make_vec(*arguments)", None),
        ('make_vec("X", *arguments)', None),
        ("DataLoader(data, 8, True, None, None, 0, None)", "DataLoader(data, 8, True, None, None, 4, None)"),
        ("DataLoader(*arguments)", None),
    ],
)
def test_a_positional_argument_is_replaced(call: str, expected: str | None, script: Path) -> None:
    script.write_text(f"made = {call}\n")
    where = f"{script}:1"
    if call.startswith("make_vec"):
        diff = of_vector_env([{"what": "make_vec", "name": "make_vec", "where": where}], "async").diff
    else:
        diff = of_loader(where, "num_workers", 4).diff
    assert (applied(diff, script) if diff else None) == (expected and [f"made = {expected}"])


def test_the_positions_are_those_of_the_signatures() -> None:
    assert [*inspect.signature(gymnasium.make_vec).parameters][MODE_POSITION] == "vectorization_mode"
    parameters = [*inspect.signature(DataLoader).parameters]
    assert all(parameters[position] == name for name, position in LOADER_POSITIONS.items())


def test_threads_without_a_call_are_variables() -> None:
    assert of_threads([], 2).variables == variables_of_threads(2)
    assert of_threads([], 2).lines()[0] == "export OMP_NUM_THREADS=2"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("DataLoader(\n    data,\n    size=32  # rows, all\n)\n", "    size=32, num_workers=4  # rows, all"),
        ("DataLoader(\n    data,\n    batch_size=32,  # rows\n)\n", "    batch_size=32, num_workers=4,  # rows"),
        ("DataLoader(  # none yet\n)\n", "DataLoader(num_workers=4  # none yet"),
        ('"""Two\x0cpages."""\nDataLoader(data)\n', "DataLoader(data, num_workers=4)"),
        ("DataLoader((data))\n", None),
        ("DataLoader(each for each in data)\n", None),
    ],
)
def test_comments_and_form_feeds_stay(source: str, expected: str | None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    number = source[: source.index("DataLoader")].count("\n") + 1
    diff = keyword_diff(f"{script}:{number}", ["DataLoader"], "num_workers", "4")
    assert [line[1:] for line in diff.split("\n") if line.startswith("+") and not line.startswith("+++")] == (
        [expected] if expected else []
    )
    if expected:
        patched = diff.replace(f"a/{script}", "a/train.py").replace(f"b/{script}", "b/train.py")
        subprocess.run(["git", "apply", "-"], input=patched.encode(), cwd=tmp_path, check=True)
        assert expected in script.read_text() and "# rows, num_workers" not in script.read_text()
