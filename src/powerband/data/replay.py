"""Replay: a ring buffer of packed rows. A transition is one row of 32-bit columns, so that a batch is one gather.

Every field has fixed columns and is read through a view in its own dtype. Bytes and bools are padded to full columns;
8-byte types start at even columns. `terminated` is stored and `truncated` is not, because a truncated transition
bootstraps from its stored next_obs like any other.

With ``n_step`` above 1, a sampled row stands for a window of up to n successive transitions of one episode. With
priorities, rows are drawn in proportion to them instead of uniformly. With hindsight, goals of a batch are relabelled.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.noise import Noise
from powerband.data.hindsight import Hindsight
from powerband.data.n_step import NStepWindows
from powerband.data.priorities import Priorities
from powerband.data.redistribute import redistributed
from powerband.data.types import TensorSpec, Tree, tree_leaves, tree_map

COLUMN_DTYPE = torch.float32
"""Dtype of the columns. Rows are only copied, never used in arithmetic, so that all bit patterns are preserved."""


class Replay:
    """Replay buffer with the last `capacity` transitions of `num_envs` environments.

    Attributes:
        rows: Storage (capacity, columns) float32, one transition per row; all fields are packed into its columns.
        filled: Number of stored transitions, 0-d int64 on the device of the rows, for sampling inside a CUDA graph.
        windows: Links between the transitions of an episode; None with n_step=1.
        priorities: Priorities of the rows; None for uniform sampling.
        hindsight: Relabelling of goals; None without it.
        drawn: Rows (n,) int64 of the newest batch.
        copies_state: `load_state_dict` and `load_share` keep no tensor of the state, see `Stateful`.
    """

    copies_state = True

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        device: torch.device | str,
        fields: dict[str, Tree],
        host: bool = False,
        n_step: int = 1,
        gamma: float = 1.0,
        priorities: Priorities | None = None,
        hindsight: Hindsight | None = None,
    ):
        """
        Args:
            capacity: Largest number of transitions on this rank; need not be a multiple of num_envs.
            num_envs: Number of transitions per call of `add`.
            device: Device of the batches.
            fields: Name -> `TensorSpec` or nested dict of them: shapes and types of one transition.
            host: Store the rows in pinned host memory, for replays that do not fit on the device. Each batch is then
                gathered there and copied to `device`, which is a host-device synchronisation.
            n_step: Largest number of transitions in the window of a sampled row. Above 1, the fields need ``reward``,
                ``terminated`` and ``next_obs``.
            gamma: Discount per step inside a window.
            priorities: Priorities of `capacity` rows on the device of the rows; None samples uniformly.
            hindsight: Relabelling of goals for `capacity` rows on the device of the rows, without n-step windows; None
                keeps all goals.

        Raises:
            ConfigError: capacity is below num_envs.
        """
        if capacity < num_envs:
            raise ConfigError(
                f"The replay capacity {capacity} is below num_envs={num_envs}, the number of transitions per step; "
                f"both count on one rank. Raise off_policy.replay_size, or lower off_policy.num_envs."
            )
        self.capacity, self.num_envs, self.device = capacity, num_envs, torch.device(device)
        self.fields = fields
        even = any(spec.dtype.itemsize == 8 for spec in tree_leaves(fields))
        self.widths: list[int] = []

        def place(spec: TensorSpec) -> tuple[TensorSpec, int]:
            width = -(-math.prod(spec.shape) * spec.dtype.itemsize // 4)
            self.widths.append(width + (width % 2 if even else 0))
            return spec, len(self.widths) - 1

        self.layout = tree_map(place, fields)
        on_host = host and self.device.type != "cpu"
        memory_device = torch.device("cpu") if on_host else self.device
        self.rows = torch.zeros(
            capacity, sum(self.widths), dtype=COLUMN_DTYPE, device=memory_device, pin_memory=on_host
        )
        self.columns = self._fields_of(self.rows)
        self.filled = torch.zeros((), dtype=torch.int64, device=self.rows.device)
        self.position = self.size = 0
        self.windows = NStepWindows(n_step, gamma, capacity, num_envs, memory_device) if n_step > 1 else None
        assert hindsight is None or (n_step == 1 and not on_host)
        self.priorities, self.hindsight = priorities, hindsight
        self.drawn = torch.zeros(0, dtype=torch.int64, device=self.rows.device)

    def __len__(self) -> int:
        return self.size

    @property
    def stored(self) -> dict[str, Tree]:
        """Views of the stored transitions by field, tensors (len(self), ...), in the order of the ring, not of age."""
        return self._fields_of(self.rows[: self.size])

    def _fields_of(self, rows: Tensor) -> dict[str, Tree]:
        """Returns views of `rows` (n, columns): every field (n, ...) in its shape and dtype."""

        columns = rows.split(self.widths, 1)

        def view(place: tuple[TensorSpec, int]) -> Tensor:
            spec, index = place
            column = columns[index] if spec.dtype == COLUMN_DTYPE else columns[index].view(spec.dtype)
            count = math.prod(spec.shape)
            if count < column.shape[1]:
                column = column[:, :count]
            if len(spec.shape) == 1:
                return column
            return column.unflatten(1, spec.shape) if spec.shape else column.squeeze(1)

        return tree_map(view, self.layout)

    def add(self, transitions: dict[str, Tree], lost: Tensor | None = None, ended: Tensor | None = None) -> None:
        """Stores one transition per environment; a full ring overwrites its oldest transitions.

        Args:
            transitions: Name -> tensor or nested dict of tensors (num_envs, ...), as in `fields`.
            lost: Mask (num_envs,) bool of environments whose simulator failed, which have no transition in this step
                and are omitted; None if there are none.
            ended: Mask (num_envs,) bool of environments whose episode ended with the transition; needed with n_step
                above 1 and with hindsight only.
        """
        count, valid = self.num_envs, None
        values = {name: transitions[name] for name in self.columns}
        if lost is not None:
            valid = (~lost).nonzero().squeeze(1)
            count = len(valid)
            values = tree_map(lambda leaf: leaf.index_select(0, valid.to(leaf.device)), values)
        start, first = self.position, min(count, self.capacity - self.position)

        def store(column: Tensor, value: Tensor) -> None:
            column[start : start + first].copy_(value[:first])
            if first < count:
                column[: count - first].copy_(value[first:])

        tree_map(store, self.columns, values)
        if self.windows is not None:
            assert ended is not None, "windows stop at the ends of episodes"
            self.windows.add(start, ended, valid)
        if self.priorities is not None:
            self.priorities.add(self._rows_from(start, count))
        if self.hindsight is not None:
            assert ended is not None, "a goal comes from the same episode"
            self.hindsight.episodes.add(self._rows_from(start, count), ended, valid)
        self.position = (start + count) % self.capacity
        if self.size < self.capacity:
            self.size = min(self.size + count, self.capacity)
            self.filled.fill_(self.size)

    def _rows_from(self, start: int, count: int) -> Tensor:
        """Returns the `count` row indices from `start` on, which continue at row 0 after the last."""
        return (torch.arange(count, device=self.rows.device) + start) % self.capacity

    def cut(self, envs: Tensor) -> None:
        """Ends the stored episodes of environments that lost theirs at a resume; `envs` is (num_envs,) bool."""
        if self.windows is not None:
            self.windows.cut(envs)
        if self.hindsight is not None:
            self.hindsight.episodes.cut(envs)

    def newest(self, count: int) -> dict[str, Tree]:
        """Returns copies of the `count` newest transitions by field, tensors (count, ...), oldest first.

        Raises:
            ConfigError: The replay has fewer transitions.
        """
        if not 0 < count <= self.size:
            raise ConfigError(
                f"{count} newest transitions were requested, but the replay has {self.size}. Request 1 to {self.size}."
            )
        index = torch.arange(self.position - count, self.position, device=self.rows.device) % self.capacity
        return self._fields_of(self.rows.index_select(0, index))

    def sample(self, n: int, source: Noise | torch.Generator) -> dict[str, Tree]:
        """Draws n transitions with replacement, uniformly or in proportion to their priorities.

        Args:
            n: Rows of the batch on this rank.
            source: Random numbers: a `Noise` (powerband's generator, which a CUDA graph can capture) with n streams, or
                a `torch.Generator` on the device of the rows.

        Returns:
            Name -> tensor or nested dict of tensors (n, ...), as in `fields`; all are views of one gathered tensor.
            With n_step above 1, ``reward`` is the discounted sum over a window, ``next_obs`` and ``terminated`` are
            those of its last transition, and ``steps`` (n,) int64 is its length. With priorities, ``weight`` (n,) is
            the importance weight of a row.

        Raises:
            ConfigError: The replay is empty, or its capacity is below n.
        """
        if n > self.capacity:
            raise ConfigError(
                f"A batch of {n} transitions is larger than the replay of {self.capacity} (per rank). "
                f"Lower off_policy.global_batch_size, or raise off_policy.replay_size."
            )
        if self.size == 0:
            raise ConfigError(
                f"{n} transitions cannot be sampled, because the replay is empty. Add transitions, "
                f"or raise off_policy.learning_starts."
            )
        index = self.drawn = self._draw(n, source).to(self.rows.device)
        batch = self._fields_of(self.rows.index_select(0, index).to(self.device))
        if self.priorities is not None:
            batch["weight"] = self.priorities.weights(index, self.filled).to(self.device)
        if self.hindsight is not None:
            self.hindsight.relabel(batch, self.columns, index, _uniform(n, 2, source, self.rows.device))
        if self.windows is None:
            return batch
        last, reward, steps = self.windows.returns(index, self.columns["reward"])
        final = self._fields_of(self.rows.index_select(0, last).to(self.device))
        batch |= {"next_obs": final["next_obs"], "terminated": final["terminated"]}
        return batch | {"reward": reward.to(self.device), "steps": steps.to(self.device)}

    def _draw(self, n: int, source: Noise | torch.Generator) -> Tensor:
        """Draws n row indices (n,) int64; see `sample`."""
        if self.priorities is not None:
            return self.priorities.sample(_uniform(n, len(self.priorities.levels), source, self.rows.device))
        if isinstance(source, Noise):
            assert source.keys.numel() == n, "a batch needs one noise id per row"
            return source.integers(self.filled).view(n)
        return torch.randint(self.size, (n,), generator=source, device=self.rows.device)

    def set_errors(self, errors: Tensor) -> None:
        """Sets the priorities of the newest batch from the errors (n,) of its rows; needs priorities."""
        assert self.priorities is not None
        self.priorities.update(self.drawn, errors.to(self.rows.device))

    def state_dict(self) -> dict:
        """Returns the state for a checkpoint: the rows (a view, no copy), position, capacity, windows, priorities."""
        parts = {} if self.windows is None else self.windows.state_dict(self.size)
        parts |= {} if self.priorities is None else self.priorities.state_dict(self.size)
        parts |= {} if self.hindsight is None else self.hindsight.state_dict(self.size)
        return {"rows": self.rows[: self.size], "position": self.position, "capacity": self.capacity, **parts}

    def load_share(self, states: list[dict], rank: int, world_size: int) -> None:
        """Restores this rank's share of the replay of a run that had another number of ranks.

        Args:
            states: Results of `state_dict` of the saved ranks, in rank order.
            rank: Number of this rank.
            world_size: Number of ranks now.
        """
        self.load_state_dict(redistributed(states, self.num_envs, self.capacity, rank, world_size))

    def load_state_dict(self, state: dict) -> None:
        """Restores the exact state of a replay with the same capacity and fields.

        Raises:
            ConfigError: The saved replay had another capacity or other fields, or it lacks the windows, priorities
                or episodes that this one needs.
        """
        rows, capacity = state["rows"], int(state["capacity"])
        if capacity != self.capacity or rows.shape[1] != self.rows.shape[1]:
            raise ConfigError(
                f"The saved replay has a capacity of {capacity} and {rows.shape[1]} columns per transition, but this "
                f"one has {self.capacity} and {self.rows.shape[1]}. Resume with the off_policy.replay_size "
                f"and the observation of the saved run."
            )
        if self.windows is not None:
            self.windows.load_state_dict(state)
        if self.priorities is not None:
            self.priorities.load_state_dict(state)
        if self.hindsight is not None:
            self.hindsight.load_state_dict(state)
        self.size, self.position = len(rows), int(state["position"])
        self.rows[: self.size].copy_(rows)
        self.filled.fill_(self.size)


def _uniform(n: int, count: int, source: Noise | torch.Generator, device: torch.device) -> Tensor:
    """Draws uniform random numbers (n, count) in [0, 1)."""
    if isinstance(source, Noise):
        assert source.keys.numel() == n, "a batch needs one noise id per row"
        return source.uniform(count)
    return torch.rand(n, count, generator=source, device=device)
