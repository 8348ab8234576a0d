"""Disk use: how much the checkpoints of a run occupy."""

from __future__ import annotations

from pathlib import Path

FURTHER = 4
"""Checkpoints in addition to the newest ones: the best, the one under evaluation, the one that is evaluated next, and
the one that is being written."""


def disk_use(checkpoint: Path, keep: int, replay: bool) -> str:
    """Describes the disk use of checkpoints.

    Args:
        checkpoint: Folder of one checkpoint.
        keep: Number of newest checkpoints to keep.
        replay: Whether it contains a replay buffer, which becomes larger.
    """
    size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    kept = f"the newest {keep}, the best and those with an unfinished evaluation are kept"
    total = _text(size * (keep + FURTHER))
    grows = ", which grows while the replay buffer fills" if replay else ""
    return f"checkpoint: {_text(size)} now; {kept}, at most {total} at this size{grows}"


def _text(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"
