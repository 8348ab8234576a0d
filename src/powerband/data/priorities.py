"""Priorities: prioritised sampling from a replay, in proportion to the errors of past updates.

The priorities are the leaves of a tree whose inner nodes are sums. Each node has 64 children, so that 262,144 rows need
three levels. All operations have fixed shapes and need no host-device synchronisation. Sums are always added up from
the children, so that rounding does not accumulate.

Source: Schaul et al. 2016, "Prioritized Experience Replay", the proportional variant.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from powerband.core.errors import ConfigError

CHILDREN = 64
"""Children of a node of the tree."""
LEAST_ERROR = 1e-6
"""Added to absolute errors, so that each stored row can be drawn."""


class Priorities:
    """Priorities of the rows of a replay with `capacity` rows, and their sums.

    Attributes:
        levels: Nodes of the tree, from the leaves to the children of the root. Each level is padded with zeros to a
            multiple of `CHILDREN`. Row i has leaf i; it is 0 if the row is not stored yet.
        largest: Largest priority so far, 0-d; new rows get it.
    """

    def __init__(
        self,
        capacity: int,
        device: torch.device | str,
        exponent: float,
        importance: float,
        maximum: Callable[[Tensor], object],
    ) -> None:
        """
        Args:
            capacity: Rows of the replay.
            device: Device of the rows.
            exponent: Exponent of the error in a priority (alpha in the source), above 0.
            importance: Exponent of the importance weights (beta in the source); 1 corrects the sampling completely.
            maximum: Function that replaces a tensor in place by its maximum over the ranks.
        """
        self.exponent, self.importance, self.maximum = exponent, importance, maximum
        self.levels: list[Tensor] = []
        size = capacity
        while not self.levels or size > 1:
            padded = -(-size // CHILDREN) * CHILDREN
            self.levels.append(torch.zeros(padded, device=device))
            size = padded // CHILDREN
        self.largest = torch.ones((), device=device)

    def add(self, rows: Tensor) -> None:
        """Gives the largest priority so far to the new rows (n,) int64."""
        self._set(rows, self.largest.expand(len(rows)))

    def update(self, rows: Tensor, errors: Tensor) -> None:
        """Sets the priorities of rows (B,) int64 from their errors (B,); a row that occurs twice gets the larger."""
        priority = (errors.abs().to(self.largest) + LEAST_ERROR) ** self.exponent
        self.largest.copy_(torch.maximum(self.largest, priority.max()))
        self._set(rows, priority)

    def _set(self, rows: Tensor, priority: Tensor) -> None:
        # Equal rows: writing zeros first, and then the maximum, gives the same result in any order.
        self.levels[0].index_fill_(0, rows, 0.0).scatter_reduce_(0, rows, priority, "amax")
        for lower, upper in zip(self.levels, self.levels[1:], strict=False):
            rows = rows // CHILDREN
            upper.index_copy_(0, rows, lower.view(-1, CHILDREN).index_select(0, rows).sum(1))

    def sample(self, uniform: Tensor) -> Tensor:
        """Draws rows (B,) int64 in proportion to their priorities.

        Args:
            uniform: Uniform random numbers (B, levels of the tree) in [0, 1). Each level has its own, because one
                number of 24 bits could not tell millions of rows apart.
        """
        rows = torch.zeros(len(uniform), dtype=torch.int64, device=uniform.device)
        for level, point in zip(reversed(self.levels), uniform.unbind(1), strict=True):
            sums = level.view(-1, CHILDREN).index_select(0, rows).cumsum(1)
            # The factor prevents rounding from selecting a child of priority 0 at the end.
            reached = (point * sums[:, -1] * (1 - 2.0**-22)).unsqueeze(1) >= sums[:, :-1]
            rows = rows * CHILDREN + reached.sum(1)
        return rows

    def weights(self, rows: Tensor, filled: Tensor) -> Tensor:
        """Computes importance weights (B,) of drawn rows, divided by the largest one of all ranks.

        Every rank draws from its own rows, equally many per rank. The probability of a row on its rank therefore
        determines its weight, and the divisor is common.

        Args:
            rows: Drawn rows (B,) int64.
            filled: Number of stored rows, 0-d.
        """
        share = self.levels[0].index_select(0, rows) / self.levels[-1].sum()
        weight = (share * filled) ** -self.importance
        largest = weight.max()
        self.maximum(largest)
        return weight / largest

    def tensors(self) -> list[Tensor]:
        """Returns all tensors that an update changes."""
        return [*self.levels, self.largest]

    def state_dict(self, size: int) -> dict[str, Tensor]:
        """Returns the priorities of the first `size` rows, which are the stored ones, all sums and the largest."""
        return {"priority": self.levels[0][:size], "sums": torch.cat(self.levels[1:] or [self.largest.new_zeros(0)]),
                "largest": self.largest}  # fmt: skip

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores a `state_dict`, bit for bit.

        Raises:
            ConfigError: The saved replay had no priorities.
        """
        if "priority" not in state:
            raise ConfigError(
                f"off_policy.priority_exponent={self.exponent:g} cannot continue this run, because its replay was "
                f"filled with priority_exponent=0. Resume with off_policy.priority_exponent=0, or start a new run."
            )
        self.levels[0].zero_()[: len(state["priority"])].copy_(state["priority"])
        self.largest.copy_(state["largest"])
        if "sums" not in state:  # of another number of ranks
            for lower, upper in zip(self.levels, self.levels[1:], strict=False):
                totals = lower.view(-1, CHILDREN).sum(1)
                upper.zero_()[: len(totals)].copy_(totals)  # a level is padded to a multiple of CHILDREN
            return
        sums = state["sums"].split([len(level) for level in self.levels[1:]]) if self.levels[1:] else ()
        for level, saved in zip(self.levels[1:], sums, strict=True):
            level.copy_(saved)
