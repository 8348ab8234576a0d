"""Storage: which folder each rank writes into, and which folders keep the checkpoints of a run.

Usually all machines of a run share one folder. A machine that does not see the folder of rank 0 has a private one.
Either its ranks send their part of each checkpoint to rank 0, or every such machine keeps the whole checkpoint.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from powerband.core.ranks.ranks import Ranks

RECEIVED = ".received"
"""Folder in ``checkpoints`` for a checkpoint of rank 0 that a machine with a private folder loads once."""


@dataclass(frozen=True)
class Storage:
    """Folders of a run, as one rank knows them.

    Attributes:
        ranks: Ranks of the run.
        folder: The run folder on the machine of this rank.
        writers: For each rank, the rank that writes its folder. Ranks with a common folder have the same writer.
        whole: True if every folder keeps whole checkpoints; False if only that of rank 0 does.
        places: For each rank, its folder as host:path.
    """

    ranks: Ranks
    folder: Path
    writers: tuple[int, ...]
    whole: bool = False
    places: tuple[str, ...] = ()

    @classmethod
    def shared(cls, ranks: Ranks, folder: Path) -> Storage:
        """All ranks see one folder."""
        return cls(ranks, folder, (0,) * ranks.world_size)

    @property
    def has_private_folders(self) -> bool:
        """True if a rank does not see the folder of rank 0."""
        return any(self.writers)

    @property
    def writes(self) -> bool:
        """True if this rank writes those files of its folder that belong to no single rank."""
        return self.writers[self.ranks.rank] == self.ranks.rank

    @property
    def keepers(self) -> list[int]:
        """Ranks that commit each checkpoint to their folder."""
        return sorted(set(self.writers)) if self.whole else [0]

    @property
    def keeps(self) -> bool:
        """True if the folder of this rank keeps checkpoints."""
        return self.writers[self.ranks.rank] in self.keepers

    @property
    def description(self) -> str:
        """Text for the start banner: what lies where; "" if all ranks share one folder."""
        if not self.has_private_folders:
            return ""
        folders = [self.places[writer] for writer in sorted(set(self.writers))]
        if self.whole:
            return f"whole checkpoints: {', '.join(folders)}; logs: {folders[0]}"
        others = ", ".join(folders[1:])
        return f"checkpoints and logs: {folders[0]}; only stacks and error files of the other machines: {others}"

    def remove_unfinished(self) -> None:
        """Removes what an interrupted save or load has left, if this rank writes the folder."""
        if self.writes:
            checkpoints = self.folder / "checkpoints"
            for path in (*checkpoints.glob(".saving-*"), checkpoints / RECEIVED):
                shutil.rmtree(path, ignore_errors=True)
