"""Features: what a frozen encoder makes of recorded pictures, computed once, mapped into memory as `frames` are.

A folder holds ``features.raw``, (rows, cameras, tokens, width) of one dtype, and ``features.json``: the number of the
format, the shape, ``dtype``, ``cameras`` and the ``fingerprint``, which names the encoder and the pictures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.console import count_shown
from powerband.data.frames import FrameCache, differs, facts_of, mapped, one_writer, placed, taken
from powerband.data.shards import ShardError

FORMAT = 1
FACTS = "features.json"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class FeatureCache:
    """Features of all rows and cameras, mapped.

    Args:
        folder: As `build` left it.

    Attributes:
        cameras: Names, in the order of the cameras' axis.
        rows, tokens, width: Sizes of the other axes.
        dtype: Of the features.
        source: Fingerprint of what the pictures were decoded from.

    Raises:
        ShardError: There is no cache, it is of another format, or its file is cut.
    """

    def __init__(self, folder: Path) -> None:
        facts = facts_of(folder / FACTS)
        if facts.get("format") != FORMAT:
            raise ShardError(f"{folder} holds no features of format {FORMAT}: remove it, and it is built again.")
        self.cameras, self.source = tuple(facts["cameras"]), facts["source"]
        self.rows, self.tokens, self.width = facts["rows"], facts["tokens"], facts["width"]
        self.dtype = DTYPES[facts["dtype"]]
        row = len(self.cameras) * self.tokens * self.width * self.dtype.itemsize
        # As bytes: NumPy has no bfloat16.
        self._map = mapped(folder / "features.raw", np.uint8, (self.rows, row))

    @classmethod
    def build(
        cls,
        folder: Path,
        frames: FrameCache,
        encoder: str,
        encode: Callable[[Tensor], Tensor],
        dtype: torch.dtype = torch.bfloat16,
        at_once: int = 64,
        gather: Callable[[Any], list[Any]] = lambda mine: [mine],
        rank: int = 0,
    ) -> FeatureCache:
        """Opens the features of `frames`; encodes them where they are not there or of another encoder. A collective.

        Args:
            folder: Where they are to lie.
            frames: The pictures.
            encoder: Tells one encoder from another: its name, and a hash of its weights where there are several.
            encode: (n, H, W, 3) uint8 on the CPU -> (n, tokens, width); not called where the features are there.
            dtype: bfloat16, float16 or float32.
            at_once: Pictures that are encoded together.
            gather: Gives what every rank handed it, in the order of ranks.
            rank: This rank; the first alone encodes.

        Raises:
            ShardError: The disk is full, or a feature is not finite.
        """
        wanted = {
            "format": FORMAT,
            "rows": frames.rows,
            "cameras": list(frames.cameras),
            "dtype": str(dtype).removeprefix("torch."),
            "fingerprint": f"{encoder} of {frames.fingerprint}",
            "source": frames.source,
        }
        if rank == 0:
            with one_writer(folder):
                if differs(folder / FACTS, wanted):
                    _encode(folder, wanted, frames, encode, dtype, at_once)
        gather(None)
        return cls(folder)

    def gather(self, rows: Tensor) -> Tensor:
        """Features (..., cameras, tokens, width) of `rows` (...) int64 on the CPU."""
        out = torch.empty(*rows.shape, self._map.shape[1], dtype=torch.uint8)
        taken(self._map, rows, out)
        return out.view(self.dtype).view(*rows.shape, len(self.cameras), self.tokens, self.width)


@torch.no_grad()
def _encode(
    folder: Path,
    wanted: dict[str, Any],
    frames: FrameCache,
    encode: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    at_once: int,
) -> None:
    with placed(folder, FACTS) as hidden, (hidden / "features.raw").open("wb") as file:
        with count_shown(f"encoding with {wanted['fingerprint'].split(' of ')[0]}", frames.rows, "rows") as tell:
            for first in range(0, frames.rows, at_once):
                rows = torch.arange(first, min(first + at_once, frames.rows))
                parts = [encode(frames.gather(camera, rows)).to("cpu", dtype) for camera in frames.cameras]
                block = torch.stack(parts, 1).contiguous()
                if not bool(block.isfinite().all()):
                    raise ShardError(
                        f"{wanted['fingerprint']} has a feature that is not finite in rows {first} to {int(rows[-1])}: "
                        f"encode in another precision than {wanted['dtype']}, or look at its weights."
                    )
                file.write(block.view(torch.uint8).numpy())
                tell(int(rows[-1]) + 1)
        file.flush()
        os.fsync(file.fileno())
        facts = wanted | {"tokens": block.shape[2], "width": block.shape[3]}
        (hidden / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
