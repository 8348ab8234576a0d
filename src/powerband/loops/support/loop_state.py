"""LoopState: the state of a loop between two iterations."""

from __future__ import annotations

from torch import Tensor

from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.types import Step, Tree, VecEnv, broadcast_rows, tree_map


class LoopState:
    """Observations and carry (recurrent state) for the next action, and the number of pending updates."""

    def __init__(self, obs: Tree, carry: Tensor | None) -> None:
        self.obs, self.carry, self.pending_updates = obs, carry, 0

    def advance(self, step: Step, carry: Tensor | None) -> None:
        """Continues from the observations of `step` and from `carry` (N, ...), None without a recurrent state.

        The carry of environments whose episode ended becomes zero.
        """
        self.obs = step.obs
        self.carry = None if carry is None else carry * broadcast_rows(~step.ended, carry)

    def resume(self, env: VecEnv, tracker: EpisodeTracker) -> None:
        """Continues after a resume; environments that lost their episode restart with a zero carry.

        `tracker` discards the lost episodes. Without lost episodes nothing changes.
        """
        lost = ~env.resumed.to(tracker.returns.device)
        if bool(lost.any()):
            self.obs = env.observe()
            self.carry = None if self.carry is None else self.carry * broadcast_rows(~lost, self.carry)
            tracker.discard(lost)

    def state_dict(self) -> dict:
        return {"obs": self.obs, "carry": self.carry, "owed": self.pending_updates}

    def load_state_dict(self, state: dict) -> None:
        self.obs = tree_map(lambda saved, current: saved.to(current.device), state["obs"], self.obs)
        carry = state["carry"]
        if carry is not None:
            assert self.carry is not None
            carry = carry.to(self.carry.device)
        self.carry = carry
        self.pending_updates = state["owed"]


def env_accounts(env: VecEnv) -> tuple[str, str]:
    """Returns (send, recv): the accounts of the phase clock, its categories of time, for these calls of `env`.

    Environments in this process use "env" for both. With workers, `recv` waits ("env_wait"), and `send` on CUDA copies
    the actions to the host ("h2d").
    """
    if not env.spec.overlappable:
        return "env", "env"
    return ("h2d" if env.device.type == "cuda" else "env"), "env_wait"
