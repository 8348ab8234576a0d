"""EpisodeTracker: sums up returns and lengths of episodes on the device, without host-device synchronisation."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from powerband.data.types import Step


class MaskedMetrics(Protocol):
    """Interface of an accumulator of metrics, which receives values together with a mask of the valid ones."""

    def add_masked(self, name: str, values: Tensor, mask: Tensor) -> None: ...


class EpisodeTracker:
    """Accumulates the return and the length of the current episode of every environment.

    Args:
        num_envs: Number of environments N.
        num_agents: Length of the agent axis of the rewards; None without this axis.
        device: Device of the rewards.

    Attributes:
        returns: Undiscounted returns of the current episodes, means over agents, (N,) float32.
        lengths: Steps of the current episodes, (N,) float32.
        ended: Number of complete episodes since the start of the run, 0-d int64.
    """

    def __init__(self, num_envs: int, num_agents: int | None, device: torch.device | str) -> None:
        self.num_agents = num_agents
        self.returns = torch.zeros(num_envs, device=device)
        self.lengths = torch.zeros(num_envs, device=device)
        self.ended = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def add(self, step: Step, metrics: MaskedMetrics | None = None) -> dict[str, Tensor]:
        """Adds one step of every environment. Buffers keep their addresses, so that a CUDA graph can capture it.

        Args:
            step: Step with rewards (N,), or (N, A) for A agents.
            metrics: Receives the returned metrics with the mask of the complete episodes; None stores nothing.

        Returns:
            ``charts/episodic_return``, ``charts/episodic_length`` in steps and ``charts/<name>`` of each metric of the
            environment: (N,) float32, valid for environments whose episode ended in this step and whose simulator did
            not fail.
        """
        ended = step.ended
        self.returns += step.reward if self.num_agents is None else step.reward.mean(1)
        self.lengths += 1
        values = {"charts/episodic_return": self.returns.clone(), "charts/episodic_length": self.lengths.clone()}
        values.update((f"charts/{name}", value) for name, value in step.episode.items())
        complete = ended if step.lost is None else ended & ~step.lost
        self.ended += complete.sum()
        self.returns.masked_fill_(ended, 0.0)
        self.lengths.masked_fill_(ended, 0.0)
        if metrics is not None:
            for name, value in values.items():
                metrics.add_masked(name, value, complete)
        return values

    @torch.no_grad()
    def discard(self, rows: Tensor) -> None:
        """Sets the return and the length of some environments to zero, because a resume has discarded their episodes.

        Args:
            rows: Mask (N,) bool of these environments.
        """
        self.returns.masked_fill_(rows, 0.0)
        self.lengths.masked_fill_(rows, 0.0)

    def state_dict(self) -> dict:
        return {"returns": self.returns, "lengths": self.lengths, "ended": self.ended}

    def load_state_dict(self, state: dict) -> None:
        self.returns.copy_(state["returns"])
        self.lengths.copy_(state["lengths"])
        self.ended.copy_(state["ended"])
