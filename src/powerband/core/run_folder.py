"""The run folder: finding it from whatever a user names of it."""

from __future__ import annotations

from pathlib import Path

from powerband.core.flags import ConfigError


def find_run(word: str, root: Path = Path("runs")) -> Path:
    """The run folder that `word` names: the folder itself, anything below it, or ``last`` for the newest in `root`.

    Raises:
        ConfigError: There is no run folder there.
    """
    if word == "last":
        runs = sorted(root.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        if not runs:
            raise ConfigError(f"'last': there is no run in {root.absolute()}. Name a run folder.")
        return runs[-1].parent
    path = Path(word).expanduser()
    if not path.exists():
        raise ConfigError(f"{word} does not exist. Name a run folder, a checkpoint, a file in either, or last.")
    for folder in (path.absolute(), *path.absolute().parents):
        if (folder / "run.json").exists() and (folder / "config.json").exists():
            return folder
    raise ConfigError(f"{word} lies in no run folder: none above it has a run.json. Name a run folder, or last.")
