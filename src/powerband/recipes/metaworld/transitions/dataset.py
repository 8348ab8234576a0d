"""TransitionDataset: reads the recorded transitions of all tasks as trajectories or as single labelled transitions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from powerband.core.machine import memory
from powerband.core.run.run import Run
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.data.types import Tree
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.nets.collective import shared_state
from powerband.recipes.metaworld.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld.project_folder import REWARD_SCALE, MissingStage, load_transitions
from powerband.recipes.metaworld.transitions.trajectories import Trajectories

CUT_SHARE = 0.25
"""Share of the trajectories that are cut short, because a policy has few past steps at the start of an episode."""
HELD_OUT = 0.1
"""Share of the runs of consecutive transitions that the encoder does not learn from."""
ENCODE_ROWS = 4096
"""Transitions that are encoded in one batch."""
LABELS = ("z", "state", "action", "mu", "log_std", "reward", "q_target", "gamma")


class TransitionDataset:
    """Recorded transitions of all tasks of a configuration, task by task; one row is one transition.

    Attributes:
        fields: Name -> tensor (rows, ...) on the CPU, or on the device that `to` moved them to. The names are those of
            `load_transitions`, with ``state`` (rows, 21) in place of the observations. ``task`` (rows,) is the index of
            the row's task in ``config.tasks``.
        past: The same rows as `Trajectories`, which gathers the steps before a row.
        tasks: Names of the tasks.

    Raises:
        MissingStage: A task has no recorded data.
    """

    def __init__(self, config: Config) -> None:
        parts: list[dict[str, Tensor]] = []
        for index, task in enumerate(config.tasks):
            found = []
            for what, stage in (("experts", "expert"), ("online", "online_distill")):
                try:
                    found.append(load_transitions(config, what, task, stage))
                except MissingStage:
                    if what == "online" and not found:
                        raise
            rows = {name: torch.cat([part[name] for part in found]) for name in found[0]}
            parts.append({**rows, "task": torch.full((len(rows["start"]),), index)})
        self.fields = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self.fields["state"] = shared_state(self.fields.pop("obs"))
        del self.fields["next_obs"]
        self.tasks = config.tasks
        self.past = self._trajectories()

    @property
    def rows(self) -> int:
        """Number of rows, which are transitions."""
        return len(self.fields["start"])

    @property
    def bytes(self) -> int:
        """Size of all rows in bytes."""
        return sum(tensor.nbytes for tensor in self.fields.values())

    def to(self, device: torch.device) -> TransitionDataset:
        """Moves all rows to `device`, and returns this dataset."""
        self.fields = {name: tensor.to(device) for name, tensor in self.fields.items()}
        self.past = self._trajectories()
        return self

    def _trajectories(self) -> Trajectories:
        fields = self.fields
        return Trajectories(fields["state"], fields["action"], fields["reward"] * REWARD_SCALE, fields["start"])

    def split(self) -> tuple[Tensor, Tensor]:
        """Splits the rows for training and testing: every tenth recorded trajectory is held out as a whole.

        Of fewer than ten, the last one is held out; a single one is not.

        Returns:
            Indices of the training rows and of the held-out rows, int64.
        """
        piece = self.fields["start"].cumsum(0)
        held = piece % min(round(1 / HELD_OUT), max(2, int(piece[-1]))) == 0
        row = torch.arange(self.rows)
        return row[~held], row[held]

    def trajectories(self, rows: Tensor, length: int, whole: bool = False) -> dict[str, Tensor]:
        """Gathers the trajectories that end at certain rows.

        Args:
            rows: Indices (B,) int64 of the rows at which B trajectories end.
            length: Largest number of states in a trajectory.
            whole: True returns up to `length` states of each trajectory. False shortens a quarter of the trajectories
                to their last steps, always at the same rows and to the same random lengths.

        Returns:
            ``state``, ``action``, ``reward`` and ``length`` of `Trajectories.windows`, and ``task`` (B,) int64, the
            index of each trajectory's task.
        """
        rows = rows.to(self.fields["task"].device)
        longest = None
        if not whole:
            draw = (rows * 2_654_435_761) % 2**32
            longest = torch.where(draw % 100 < 100 * CUT_SHARE, 1 + (draw // 100) % length, length)
        return {**self.past.windows(rows, length, longest), "task": self.fields["task"][rows]}

    def labels(self, rows: Tensor) -> dict[str, Tensor]:
        """Gathers a batch of single transitions with the labels of their teacher. Call `encode` first.

        Args:
            rows: Indices (B,) int64 of the rows of the batch.

        Returns:
            Name -> tensor (B, ...): the batch that `DistillationLearner.update` expects.
        """
        rows = rows.to(self.fields["task"].device)
        return {name: self.fields[name][rows] for name in LABELS}

    @torch.no_grad()
    def encode(self, encoder: TrajectoryEncoder, device: torch.device) -> None:
        """Computes the code of the trajectory that ends at each row, and stores all codes as ``fields["z"]``.

        The encoder is frozen, so the codes are computed once for all updates. `device` is that of the encoder.
        """
        codes = []
        for rows in torch.arange(self.rows).split(ENCODE_ROWS):
            batch = self.trajectories(rows, encoder.config.length, whole=True)
            codes.append(encoder.encode({name: part.to(device) for name, part in batch.items()}).cpu())
        self.fields["z"] = torch.cat(codes)


def make_batch_loader(
    config: Config,
    run: Run,
    recorded: TransitionDataset,
    rows: Tensor,
    make_batch: Callable[[Tensor, TransitionDataset], Tree],
) -> tuple[BatchLoader, str]:
    """Creates the batch loader of this rank, and places the dataset on the device or in host memory.

    The dataset moves to the device with ``offline.place=device``. With ``offline.place=auto``, it moves if it fits into
    half of the free device memory.

    Args:
        config: Batch size and placement.
        run: Device and ranks.
        recorded: The dataset.
        rows: Indices (n,) int64 of the rows to draw from.
        make_batch: Function (indices of the chosen rows, dataset) -> batch.

    Returns:
        The loader, and one line of text with the size and the place of the dataset, for the banner at the start.
    """
    loop, ranks, free = config.offline, run.ranks, memory.free(str(run.device))
    fits = run.device.type == "cpu" or free is None or recorded.bytes < free / 2
    on_device = loop.place == "device" or (loop.place == "auto" and fits)
    if on_device:
        recorded.to(run.device)
    loader = BatchLoader(
        len(rows),
        loop.batch(ranks.world_size),
        lambda index: make_batch(rows[index], recorded),
        run.device,
        config.run.seed,
        ranks.rank,
        ranks.world_size,
        0 if on_device and run.device.type != "cpu" else loop.loader_threads,
    )
    place = f"on {run.device}" if on_device else f"in host memory, {loop.loader_threads} loader thread(s)"
    return loader, f"{recorded.bytes / 2**20:,.0f} MiB of {len(recorded.tasks)} task(s) {place}"
