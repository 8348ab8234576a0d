"""Replay ring of packed rows: a transition is one row of 32-bit words, so that a batch is one gather.

Every field has its place in the row and is read through a view of the words in its own dtype: bytes and bools are
padded to whole words, 8-byte types start at even words. `terminated` is stored and `truncated` is not: a truncated
transition bootstraps from its stored next_obs like any other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerband.core.noise import Noise
from powerband.data.types import TensorSpec, Tree, tree_leaves, tree_map

WORD = torch.float32
"""Type of a word. Rows are only ever copied, never computed with, so that any bits survive."""


class Replay:
    """The last `capacity` transitions of `num_envs` environments.

    Attributes:
        rows: (capacity, words) float32.
        filled: 0-d int64 on the device of the rows: transitions held (for sampling inside a CUDA graph).
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        device: torch.device | str,
        fields: dict[str, Tree],
        host: bool = False,
    ):
        """
        Args:
            capacity: Transitions kept by this rank; need not be a multiple of num_envs.
            num_envs: Transitions a call of `add`.
            device: Where batches are wanted.
            fields: Name -> tree of `TensorSpec` of one transition.
            host: Keeps the rows in (pinned) host memory; each batch is then gathered there and copied to `device`,
                which synchronises with the host. For replays that do not fit on the device.

        Raises:
            ValueError: capacity is below num_envs.
        """
        if capacity < num_envs:
            raise ValueError(
                f"replay capacity {capacity} is below num_envs={num_envs}, the transitions of one step; "
                f"raise replay_size to {num_envs} or more, or lower num_envs."
            )
        self.capacity, self.num_envs, self.device = capacity, num_envs, torch.device(device)
        self.fields = fields
        even = any(spec.dtype.itemsize == 8 for spec in tree_leaves(fields))
        self.widths: list[int] = []

        def place(spec: TensorSpec) -> tuple[TensorSpec, int]:
            words = -(-math.prod(spec.shape) * spec.dtype.itemsize // 4)
            self.widths.append(words + (words % 2 if even else 0))
            return spec, len(self.widths) - 1

        self.layout = tree_map(place, fields)
        words = sum(self.widths)
        on_host = host and self.device.type != "cpu"
        self.rows = torch.zeros(
            capacity, words, dtype=WORD, device="cpu" if on_host else self.device, pin_memory=on_host
        )
        self.columns = self._fields_of(self.rows)
        self.filled = torch.zeros((), dtype=torch.int64, device=self.rows.device)
        self.position = self.size = 0

    def __len__(self) -> int:
        return self.size

    @property
    def stored(self) -> dict[str, Tree]:
        """The transitions that are held: views, each leaf (len(self), ...)."""
        return self._fields_of(self.rows[: self.size])

    def _fields_of(self, rows: Tensor) -> dict[str, Tree]:
        """Views of `rows` (n, words): every field (n, ...) in its shape and dtype."""

        columns = rows.split(self.widths, 1)

        def view(place: tuple[TensorSpec, int]) -> Tensor:
            spec, index = place
            column = columns[index] if spec.dtype == WORD else columns[index].view(spec.dtype)
            count = math.prod(spec.shape)
            if count < column.shape[1]:
                column = column[:, :count]
            if len(spec.shape) == 1:
                return column
            return column.unflatten(1, spec.shape) if spec.shape else column.squeeze(1)

        return tree_map(view, self.layout)

    def add(self, transitions: dict[str, Tree], lost: Tensor | None = None) -> None:
        """Stores one transition of each environment, over the oldest where the ring is full.

        Args:
            transitions: The trees of `fields`, each leaf (num_envs, ...).
            lost: (num_envs,) bool: rows that hold no transition and are left out; None where all do.
        """
        count = self.num_envs
        given = {name: transitions[name] for name in self.columns}
        if lost is not None:
            kept = (~lost).nonzero().squeeze(1)
            count = len(kept)
            given = tree_map(lambda leaf: leaf.index_select(0, kept.to(leaf.device)), given)
        start, first = self.position, min(count, self.capacity - self.position)

        def store(column: Tensor, value: Tensor) -> None:
            column[start : start + first].copy_(value[:first])
            if first < count:
                column[: count - first].copy_(value[first:])

        tree_map(store, self.columns, given)
        self.position = (start + count) % self.capacity
        if self.size < self.capacity:
            self.size = min(self.size + count, self.capacity)
            self.filled.fill_(self.size)

    def newest(self, count: int) -> dict[str, Tree]:
        """The `count` transitions that entered last, the oldest of them first: the trees of `fields`, copies.

        Raises:
            ValueError: The replay does not hold so many.
        """
        if not 0 < count <= self.size:
            raise ValueError(f"{count} newest transitions were asked for, the replay holds {self.size}.")
        index = torch.arange(self.position - count, self.position, device=self.rows.device) % self.capacity
        return self._fields_of(self.rows.index_select(0, index))

    def sample(self, n: int, source: Noise | torch.Generator) -> dict[str, Tree]:
        """Draws n transitions uniformly, with replacement.

        Args:
            n: Rows of the batch (of this rank).
            source: A `Noise` of n ids (can be captured in a graph), or a generator on the device of the rows.

        Returns:
            The trees of `fields`, each leaf (n, ...): views of one gathered tensor.

        Raises:
            ValueError: The replay is empty, or cannot hold n transitions.
        """
        if n > self.capacity:
            raise ValueError(
                f"a batch of {n} is larger than the replay of {self.capacity} transitions (per rank); "
                f"lower the batch or raise replay_size."
            )
        if self.size == 0:
            raise ValueError(f"cannot sample {n} transitions: the replay is empty; add some, or raise learning_starts.")
        if isinstance(source, Noise):
            assert source.keys.numel() == n, "a batch needs one noise id a row"
            index = source.integers(self.filled).view(n)
        else:
            index = torch.randint(self.size, (n,), generator=source, device=self.rows.device)
        rows = self.rows.index_select(0, index.to(self.rows.device))
        return self._fields_of(rows.to(self.device))

    def state_dict(self) -> dict:
        """The rows that hold transitions (a view, not a copy) and the place of the next one."""
        return {"rows": self.rows[: self.size], "position": self.position, "capacity": self.capacity}

    def load_state_dict(self, state: dict) -> None:
        """Restores a replay of the same capacity and fields, exactly.

        Raises:
            ValueError: The saved replay had another capacity or other fields.
        """
        rows, capacity = state["rows"], int(state["capacity"])
        if capacity != self.capacity or rows.shape[1] != self.rows.shape[1]:
            raise ValueError(
                f"the saved replay holds {capacity} transitions of {rows.shape[1]} words, this one {self.capacity} of "
                f"{self.rows.shape[1]}; resume with the replay_size and observation of the saved run."
            )
        self.size, self.position = len(rows), int(state["position"])
        self.rows[: self.size].copy_(rows)
        self.filled.fill_(self.size)
