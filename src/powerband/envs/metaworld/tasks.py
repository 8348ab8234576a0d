"""Tasks of Meta-World by name. No simulator and no torch here: the command line and workers import this file."""

from __future__ import annotations

import difflib

TEN = (
    "reach",
    "push",
    "pick-place",
    "door-open",
    "drawer-open",
    "drawer-close",
    "button-press-topdown",
    "peg-insert-side",
    "window-open",
    "window-close",
)
"""The ten tasks of MT10, in its order; the index of a task is its place in the one-hot code."""
OTHERS = """
    assembly basketball bin-picking box-close button-press-topdown-wall button-press button-press-wall
    coffee-button coffee-pull coffee-push dial-turn disassemble door-close door-lock door-unlock hand-insert faucet-open
    faucet-close hammer handle-press-side handle-press handle-pull-side handle-pull lever-pull pick-place-wall
    pick-out-of-hole plate-slide plate-slide-side plate-slide-back plate-slide-back-side peg-unplug-side soccer
    stick-push stick-pull push-wall push-back reach-wall shelf-place sweep-into sweep
""".split()
"""The other forty tasks of Meta-World 3; a test holds the fifty against the package."""
KNOWN = (*TEN, *OTHERS)
MT10 = "mt10"
"""In place of a task: all ten at once, their one-hot code behind the observation."""
INSTALL = "pip install 'powerband[metaworld]'"
OBS, ACTION, GOALS = 39, 4, 50
"""Entries of an observation and of an action; goals of a task."""


class NoSuchTask(ValueError):
    """A name that Meta-World does not know."""


class NotInstalled(ValueError):
    """A simulator that is not installed; the message has the command that installs it."""


def task_named(word: str) -> tuple[str, str]:
    """The task that `word` means, and what to tell the user about the word ("" for nothing).

    Args:
        word: "reach", "reach-v3", or "reach-v2" of older code.

    Raises:
        NoSuchTask: Names the nearest tasks.
    """
    name, _, version = word.rpartition("-v")
    name = name if version.isdigit() and name else word
    if name not in KNOWN:
        near = difflib.get_close_matches(name, KNOWN, n=3, cutoff=0.4)
        raise NoSuchTask(f"task={word}: Meta-World has no such task. Nearest: {', '.join(near) or ', '.join(TEN)}.")
    older = version.isdigit() and version != "3"
    return name, f"task={word}: Meta-World 3 has {name}-v3 only, whose rewards are those of v2." * older


def tasks_of(task: str) -> tuple[str, ...]:
    """The tasks of one word: itself, or the ten of MT10."""
    return TEN if task == MT10 else (task,)


def pool_id(task: str) -> str:
    """EnvPool's id of a task."""
    return "MetaWorld/" + "".join(part.capitalize() for part in task.split("-")) + "-v3"
