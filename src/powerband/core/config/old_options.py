"""Old options: rewrites options of earlier versions and of other code before `FieldLookup` finds their settings.

`FieldLookup` renames one option at a time. This module handles the other cases: an option whose value selects a stage
or several settings, an option that means nothing any more, and options that imply an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from powerband.core.config.flags import Flag, from_arguments

SOURCES = ("variant", "setup", "config")
"""Options that name a source of settings. They are allowed on the command line only."""


@dataclass(frozen=True)
class OldOptions:
    """The old options of a schema.

    Attributes:
        names: Old name -> new name, or (new name, note). (None, note) refuses the old name with the note; ("", note)
            drops it with a notice that ends with the note.
        arguments: Old ``name=value`` -> new ``name=value`` (several are separated by blanks), a stage, or "" if it is
            obsolete; or (one of these, note).
            A name without a value counts as ``name=true``.
        combined: ``(flags) -> (flags, notices)`` for options that only have a meaning together; None if there are none.
        implied_algo: Option, as the user wrote it -> algorithm that it implies if the user names none.
    """

    names: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    combined: Callable[[list[Flag]], tuple[list[Flag], list[str]]] | None = None
    implied_algo: Mapping[str, str] = field(default_factory=dict)

    def rewrite(self, flags: Iterable[Flag]) -> tuple[list[Flag], str, list[str]]:
        """Replaces old options that `FieldLookup` cannot rename.

        Returns:
            The remaining and new flags, the stage that an old option selects ("" for none), and notices for the user.
        """
        names = {_normal(old): new for old, new in self.names.items()}
        arguments = {_normal(old): new for old, new in self.arguments.items()}
        kept: list[Flag] = []
        stage = ""
        notices: list[str] = []
        for flag in flags:
            written = f"{flag.name}={_plain(flag.value)}".lower()
            new, note = _entry(names.get(flag.name, "?"))
            if written in arguments:
                new, note = _entry(arguments[written])
                notices.append(f"{flag}: {f'replaced by {new}' if new else 'no longer needed'}{_end(note)}")
                if new and "=" not in new:
                    stage = new
                elif new:
                    kept += [added for added in from_arguments(new.split(), flag.source) if added not in kept]
            elif new == "":
                notices.append(f"{flag}: no effect here{_end(note)}")
            elif new in SOURCES:
                notices.append(f"{flag}: {flag.name} is {new} here{_end(note)}")
                kept.append(replace(flag, name=new))
            else:
                kept.append(flag)
        if self.combined is not None:
            kept, more = self.combined(kept)
            notices += more
        return kept, stage, notices

    def implied(self, flags: list[Flag]) -> tuple[list[Flag], list[str]]:
        """Returns the flag ``algo=NAME`` that the options of the user imply, and a notice; both are empty if none does.

        Args:
            flags: Flags of the command line and of the ``--config`` file.
        """
        algorithms = {_normal(option): algo for option, algo in self.implied_algo.items()}
        for flag in flags:
            if algo := algorithms.get(flag.name):
                note = f"{flag}: implies algo={algo}, the algorithm of the guide. Write algo=... to choose another one."
                return [Flag("algo", algo, flag.source)], [note]
        return [], []


def _normal(option: str) -> str:
    """An option, with or without a value, as `Flag` writes its name, and with a lower-case ``name=value``."""
    name, equals, value = option.lstrip("-").partition("=")
    name = name.replace("-", "_")
    return f"{name}={value}".lower() if equals else name


def _plain(value: str | tuple[str, ...] | None) -> str:
    if value is None:
        return "true"
    return (value if isinstance(value, str) else ",".join(value)).replace('"', "").replace("'", "")


def _entry(entry: Any) -> tuple[Any, str]:
    return (entry, "") if isinstance(entry, str) or entry is None else entry


def _end(note: str) -> str:
    return f"; {note}." if note else "."
