"""Where a loop stands between two of its iterations."""

from __future__ import annotations

from torch import Tensor

from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.types import Step, Tree, VecEnv, broadcast_rows, tree_map


class LoopState:
    """Where a loop stands between two iterations: what the next action is chosen from, and the updates still owed."""

    def __init__(self, obs: Tree, carry: Tensor | None) -> None:
        self.obs, self.carry, self.pending_updates = obs, carry, 0

    def advance(self, step: Step, carry: Tensor | None) -> None:
        """Goes on from `step`; the carry (N, ...) starts anew in the rows whose episode ended."""
        self.obs = step.obs
        self.carry = None if carry is None else carry * broadcast_rows(~step.ended, carry)

    def resume(self, env: VecEnv, tracker: EpisodeTracker) -> None:
        """Starts anew in the rows whose live episode the environment could not take up after a resume."""
        lost = ~env.resumed.to(tracker.returns.device)
        if bool(lost.any()):
            self.obs = env.observe()
            self.carry = None if self.carry is None else self.carry * broadcast_rows(~lost, self.carry)
            tracker.discard(lost)

    def state_dict(self) -> dict:
        return {"obs": self.obs, "carry": self.carry, "owed": self.pending_updates}

    def load_state_dict(self, state: dict) -> None:
        self.obs = tree_map(lambda saved, here: saved.to(here.device), state["obs"], self.obs)
        self.carry = None if state["carry"] is None else state["carry"].to(self.carry.device)
        self.pending_updates = state["owed"]


def env_accounts(env: VecEnv) -> tuple[str, str]:
    """Accounts that `send` and `recv` belong to: stepping in this process, or waiting for the processes that step.

    On CUDA, `send` to worker processes is the copy of the actions to the host.
    """
    if not env.spec.overlappable:
        return "env", "env"
    return ("h2d" if env.device.type == "cuda" else "env"), "env_wait"
