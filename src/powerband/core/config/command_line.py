"""Words of a command line: what is common to all verbs is taken out of them here, and what a verb gives is printed."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError


def split_json_option(words: list[str]) -> tuple[str, list[str]]:
    """("" or "-" or a path, the other words) for ``--json``, ``--json PATH.json``, ``--json=PATH``."""
    for position, word in enumerate(words):
        if word.startswith("--json="):
            return word.removeprefix("--json=") or "-", words[:position] + words[position + 1 :]
        if word == "--json":
            has_path = position + 1 < len(words) and words[position + 1].endswith(".json")
            return words[position + 1] if has_path else "-", words[:position] + words[position + 1 + has_path :]
    return "", words


def split_named_options(words: list[str], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(words that set one of `names`, the others) for ``name=value``, ``--name value`` and bare ``--name``."""
    taken, others, position = [], [], 0
    while position < len(words):
        word, end = words[position], position + 1
        if word.startswith("--") and "=" not in word:
            while end < len(words) and not words[end].startswith("--") and "=" not in words[end]:
                end += 1
        named = word.removeprefix("--").split("=")[0].replace("-", "_") in names
        (taken if named else others).extend(words[position:end])
        position = end
    return taken, others


def wants_help(words: list[str]) -> bool:
    return any(word in ("-h", "--help") for word in words)


def checked_choice(word: str, known: Any, what: str) -> str:
    """Returns `word` if it is one of `known`.

    Raises:
        ConfigError: It is not; the message names the nearest and all valid values.
    """
    if word in known:
        return word
    near = get_close_matches(word, list(known), n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise ConfigError(f"Unknown {what} '{word}'.{hint} Available: {', '.join(known)}.")


def print_or_write(value: Any, target: str) -> None:
    """Prints `value`, as JSON where `target` says so, or writes it to the file that `target` names."""
    if target not in ("", "-"):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    else:
        print(value if isinstance(value, str) and not target else json.dumps(value, indent=2))
