"""Recorded: what the experts and online_distill left of all tasks, as trajectories and as labels to learn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerband.core import memory
from powerband.core.run import Run
from powerband.data.feed import Feed
from powerband.data.trajectories import Trajectories
from powerband.nets.collective import state_of
from powerband.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld import Config
from powerband.recipes.metaworld_project import REWARD_SCALE, MissingStage, data_of

SHORTER = 0.25
"""Share of the trajectories that are cut short: an episode's first steps are all that is known at its start."""
HELD_OUT = 0.1
"""Share of the episodes that the encoder does not learn from."""
ENCODED = 4096
"""Rows that are encoded at a time."""


class Recorded:
    """Rows of all tasks of a configuration, one task after the other.

    Attributes:
        fields: Name -> (rows, ...) on the CPU, or where `to` moved them; ``task`` (rows,) counts as the configuration.
        past: The same rows as trajectories.

    Raises:
        MissingStage: A task has no data at all.
    """

    def __init__(self, config: Config) -> None:
        parts: list[dict[str, Tensor]] = []
        for index, task in enumerate(config.tasks):
            found = []
            for what, stage in (("experts", "expert"), ("online", "online_distill")):
                try:
                    found.append(data_of(config, what, task, stage))
                except MissingStage:
                    if what == "online" and not found:
                        raise
            rows = {name: torch.cat([part[name] for part in found]) for name in found[0]}
            parts.append({**rows, "task": torch.full((len(rows["start"]),), index)})
        self.fields = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self.fields["state"] = state_of(self.fields.pop("obs"))
        del self.fields["next_obs"]
        self.tasks = config.tasks
        self._link()

    @property
    def rows(self) -> int:
        return len(self.fields["start"])

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.fields.values())

    def to(self, device: torch.device) -> Recorded:
        """Moves all rows to `device`."""
        self.fields = {name: tensor.to(device) for name, tensor in self.fields.items()}
        self._link()
        return self

    def _link(self) -> None:
        own = self.fields
        self.past = Trajectories(own["state"], own["action"], own["reward"] * REWARD_SCALE, own["start"])

    def split(self) -> tuple[Tensor, Tensor]:
        """Rows to learn from, and those of every tenth recorded piece, which are held out."""
        piece = self.fields["start"].cumsum(0)
        held = piece % round(1 / HELD_OUT) == 0
        row = torch.arange(self.rows)
        return row[~held], row[held]

    def trajectories(self, rows: Tensor, length: int, whole: bool = False) -> dict[str, Tensor]:
        """What led to `rows`, with ``task``; a share is cut short, the same one for the same rows."""
        rows = rows.to(self.fields["task"].device)
        longest = None
        if not whole:
            draw = (rows * 2_654_435_761) % 2**32
            longest = torch.where(draw % 100 < 100 * SHORTER, 1 + (draw // 100) % length, length)
        return {**self.past.windows(rows, length, longest), "task": self.fields["task"][rows]}

    def labels(self, rows: Tensor) -> dict[str, Tensor]:
        """Code, state, action, reward, the expert's labels and its discount of `rows`."""
        rows = rows.to(self.fields["task"].device)
        return {
            name: self.fields[name][rows]
            for name in ("z", "state", "action", "mu", "log_std", "reward", "q_target", "gamma")
        }

    @torch.no_grad()
    def encode(self, encoder: TrajectoryEncoder, device: Any) -> None:
        """Adds ``z``: once for all updates, as the encoder does not change any more."""
        codes = []
        for rows in torch.arange(self.rows).split(ENCODED):
            batch = self.trajectories(rows, encoder.config.length, whole=True)
            codes.append(encoder.encode({name: part.to(device) for name, part in batch.items()}).cpu())
        self.fields["z"] = torch.cat(codes)


def feed_of(
    config: Config, run: Run, recorded: Recorded, rows: Tensor, make: Callable[[Tensor, Recorded], Any]
) -> tuple[Feed, str]:
    """Batches of the `rows` of what was recorded, and where these rows lie, in words.

    The rows go to the device where they are asked to, or where they fit into half of what is free there.
    """
    loop, ranks, free = config.offline, run.ranks, memory.free(str(run.device))
    fits = run.device.type == "cpu" or free is None or recorded.bytes < free / 2
    on_device = loop.place == "device" or (loop.place == "auto" and fits)
    if on_device:
        recorded.to(run.device)
    feed = Feed(
        len(rows),
        loop.batch(ranks.world_size),
        lambda index: make(rows[index], recorded),
        run.device,
        config.run.seed,
        ranks.rank,
        ranks.world_size,
        0 if on_device and run.device.type != "cpu" else loop.loader_threads,
    )
    place = f"on {run.device}" if on_device else f"in host memory, {loop.loader_threads} loader thread(s)"
    return feed, f"{recorded.bytes / 2**20:,.0f} MiB of {len(recorded.tasks)} task(s) {place}"
