"""EpisodeTracker: returns and lengths of episodes, added up where the rewards are, with no synchronisation."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from powerband.data.types import Step


class MaskedMetrics(Protocol):
    def add_masked(self, name: str, values: Tensor, mask: Tensor) -> None: ...


class EpisodeTracker:
    """Adds up the live episode of every environment.

    Args:
        num_envs: Number of environments N.
        num_agents: Length of the agent axis of the rewards, None where there is none.
        device: Where rewards are delivered.

    Attributes:
        returns: (N,) float32: undiscounted return of the live episode, mean over agents.
        lengths: (N,) float32: steps of the live episode.
        ended: 0-d int64: episodes that have ended since the start of the run.
    """

    def __init__(self, num_envs: int, num_agents: int | None, device: torch.device | str) -> None:
        self.num_agents = num_agents
        self.returns = torch.zeros(num_envs, device=device)
        self.lengths = torch.zeros(num_envs, device=device)
        self.ended = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def add(self, step: Step, metrics: MaskedMetrics | None = None) -> dict[str, Tensor]:
        """Adds one step of every environment; all buffers keep their addresses, so that it can be captured.

        Args:
            step: Rewards (N,) or (N, A).
            metrics: Is handed every figure with the mask of the rows that ended.

        Returns:
            Figures (N,) float32, valid where ``step.ended`` and not ``step.lost``: ``charts/episodic_return``,
            ``charts/episodic_length`` and ``charts/<name>`` of each figure that the environment reports.
        """
        ended = step.ended
        self.returns += step.reward if self.num_agents is None else step.reward.mean(1)
        self.lengths += 1
        figures = {"charts/episodic_return": self.returns.clone(), "charts/episodic_length": self.lengths.clone()}
        figures.update((f"charts/{name}", values) for name, values in step.episode.items())
        whole = ended if step.lost is None else ended & ~step.lost
        self.ended += whole.sum()
        self.returns.masked_fill_(ended, 0.0)
        self.lengths.masked_fill_(ended, 0.0)
        if metrics is not None:
            for name, values in figures.items():
                metrics.add_masked(name, values, whole)
        return figures

    @torch.no_grad()
    def discard(self, rows: Tensor) -> None:
        """Forgets the live episodes of `rows` (N,) bool: a resume could not take them up."""
        self.returns.masked_fill_(rows, 0.0)
        self.lengths.masked_fill_(rows, 0.0)

    def state_dict(self) -> dict:
        return {"returns": self.returns, "lengths": self.lengths, "ended": self.ended}

    def load_state_dict(self, state: dict) -> None:
        self.returns.copy_(state["returns"])
        self.lengths.copy_(state["lengths"])
        self.ended.copy_(state["ended"])
