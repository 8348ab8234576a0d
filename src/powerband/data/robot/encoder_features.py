"""FeatureCache: features of recorded images by a frozen encoder, computed once and memory-mapped.

A folder holds ``features.raw``, (rows, cameras, tokens, width) of one dtype, and ``features.json``: the format number,
the shape, ``dtype``, ``cameras`` and the ``fingerprint``, which names the encoder and the images.
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

from powerband.core.telemetry.console import count_progress_bar
from powerband.data.recorded.shards import ShardError
from powerband.data.robot.frames import (
    FrameCache,
    atomic_folder,
    copy_rows,
    is_stale,
    map_file,
    read_facts,
    single_writer,
)

FORMAT = 1
FACTS_FILE = "features.json"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class FeatureCache:
    """Features of recorded images, computed once by a frozen encoder and memory-mapped from disk.

    The features have the shape (rows, cameras, tokens, width): each image becomes a number of tokens (vectors).

    Args:
        folder: Folder that `build` wrote.

    Attributes:
        cameras: Names of the cameras, in the order of their axis.
        rows: Number of recorded rows (steps).
        tokens: Number of tokens per image.
        width: Number of features per token.
        dtype: Type of the features.
        source: Hash that identifies the recorded episodes.

    Raises:
        ShardError: The cache is missing, has another format, or is truncated.
    """

    def __init__(self, folder: Path) -> None:
        facts = read_facts(folder / FACTS_FILE)
        if facts.get("format") != FORMAT:
            raise ShardError(
                f"{folder} has no cached image features of format {FORMAT}. Remove the folder; the next run builds it "
                f"again."
            )
        self.cameras, self.source = tuple(facts["cameras"]), facts["source"]
        self.rows, self.tokens, self.width = facts["rows"], facts["tokens"], facts["width"]
        self.dtype = DTYPES[facts["dtype"]]
        row_bytes = len(self.cameras) * self.tokens * self.width * self.dtype.itemsize
        # As bytes, since NumPy has no bfloat16.
        self._map = map_file(folder / "features.raw", np.uint8, (self.rows, row_bytes))

    @classmethod
    def build(
        cls,
        folder: Path,
        frames: FrameCache,
        encoder: str,
        encode: Callable[[Tensor], Tensor],
        dtype: torch.dtype = torch.bfloat16,
        batch_size: int = 64,
        gather: Callable[[Any], list[Any]] = lambda mine: [mine],
        rank: int = 0,
    ) -> FeatureCache:
        """Opens the cached features of `frames`. They are computed first if the cache is missing or does not match.

        The cache does not match if it is of other images, another encoder or another type. All ranks (processes of the
        training) must call this function together.

        Args:
            folder: Folder of the cache.
            frames: Images to encode.
            encoder: Name that identifies the encoder and its weights.
            encode: Function from CPU images (n, height, width, 3) uint8 to features (n, tokens, width); not called for
                a valid cache.
            dtype: Type of the features: bfloat16, float16 or float32.
            batch_size: Images that are encoded together.
            gather: Function that all ranks call together; it returns the arguments of all ranks, in rank order. The
                default is for a single rank.
            rank: Index of this rank; rank 0 encodes.

        Raises:
            ShardError: The disk is full, or a feature is not finite.
        """
        facts = {
            "format": FORMAT,
            "rows": frames.rows,
            "cameras": list(frames.cameras),
            "dtype": str(dtype).removeprefix("torch."),
            "fingerprint": f"{encoder} of {frames.fingerprint}",
            "source": frames.source,
        }
        if rank == 0:
            with single_writer(folder):
                if is_stale(folder / FACTS_FILE, facts):
                    _encode(folder, facts, frames, encode, dtype, batch_size)
        gather(None)
        return cls(folder)

    def gather(self, rows: Tensor) -> Tensor:
        """Reads the features of some rows.

        Args:
            rows: Indices of the rows, of any shape (...), int64 on the CPU.

        Returns:
            Features (..., cameras, tokens, width) on the CPU.
        """
        out = torch.empty(*rows.shape, self._map.shape[1], dtype=torch.uint8)
        copy_rows(self._map, rows, out)
        return out.view(self.dtype).view(*rows.shape, len(self.cameras), self.tokens, self.width)


@torch.no_grad()
def _encode(
    folder: Path,
    facts: dict[str, Any],
    frames: FrameCache,
    encode: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    batch_size: int,
) -> None:
    label = f"encoding with {facts['fingerprint'].split(' of ')[0]}"
    with atomic_folder(folder, FACTS_FILE) as partial, (partial / "features.raw").open("wb") as file:
        with count_progress_bar(label, frames.rows, "rows") as on_progress:
            for first in range(0, frames.rows, batch_size):
                rows = torch.arange(first, min(first + batch_size, frames.rows))
                parts = [encode(frames.gather(camera, rows)).to("cpu", dtype) for camera in frames.cameras]
                block = torch.stack(parts, 1).contiguous()
                if not bool(block.isfinite().all()):
                    raise ShardError(
                        f"The encoder {facts['fingerprint']} returns NaN or infinite features for rows {first} to "
                        f"{int(rows[-1])}. Download its weights again, or pass another dtype than {facts['dtype']} to "
                        f"FeatureCache.build."
                    )
                file.write(block.view(torch.uint8).numpy().data)
                on_progress(int(rows[-1]) + 1)
        file.flush()
        os.fsync(file.fileno())
        facts = facts | {"tokens": block.shape[2], "width": block.shape[3]}
        (partial / FACTS_FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")
