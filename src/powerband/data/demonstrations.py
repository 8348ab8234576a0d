"""Demonstrations: recorded episodes as what a policy of action chunks learns from."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.data.types import Tree


class Demonstrations:
    """Rows of a recording, whose episodes follow one another.

    Args:
        fields: Name -> (rows, ...); ``action`` (rows,) and ``episode`` (rows,) int64 among them.
        pictures: Fields of which the newest `frames` are seen together, along the channels (oldest first).
        frames: See `pictures`; before an episode's start, its first stands for them.
        horizon: Actions of a chunk; after an episode's end, its last action stands for them.

    Raises:
        ValueError: The rows of an episode do not follow one another.
    """

    def __init__(self, fields: dict[str, Tensor], pictures: tuple[str, ...], frames: int, horizon: int) -> None:
        episode = fields["episode"]
        begins = torch.cat([torch.ones(1, dtype=torch.bool), episode[1:] != episode[:-1]])
        first = begins.nonzero()[:, 0]
        if len(first) != len(episode.unique()):
            raise ValueError("the rows of an episode do not follow one another: record these demonstrations again.")
        turn = begins.cumsum(0) - 1
        self.first = first[turn]
        self.last = torch.cat([first[1:] - 1, torch.tensor([len(episode) - 1])])[turn]
        self.fields, self.pictures = fields, pictures
        self.past, self.future = torch.arange(1 - frames, 1), torch.arange(horizon)

    @property
    def rows(self) -> int:
        return len(self.first)

    def __call__(self, rows: Tensor) -> dict[str, Tree]:
        """``obs`` with leaves (R, ...) and ``action`` (R, horizon) int64 of rows (R,) int64."""
        seen = torch.maximum(rows.unsqueeze(1) + self.past, self.first[rows].unsqueeze(1))
        done = torch.minimum(rows.unsqueeze(1) + self.future, self.last[rows].unsqueeze(1))
        obs: Tree = {name: value[rows] for name, value in self.fields.items() if name not in ("action", *self.pictures)}
        for name in self.pictures:
            obs[name] = self.fields[name][seen].flatten(1, 2)
        return {"obs": obs, "action": self.fields["action"][done].long()}
