"""LoopState: the state of a loop between two iterations."""

from __future__ import annotations

from torch import Tensor

from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.types import Step, Tree, VecEnv, broadcast_rows, tree_map


class LoopState:
    """State of a loop between two iterations, saved in checkpoints.

    Attributes:
        obs: Observations (N, ...) of N environments for the next action.
        carry: Recurrent state (N, ...) for the next action; None for a policy without recurrent state.
        pending_updates: Number of updates that are due but have not run yet.
    """

    def __init__(self, obs: Tree, carry: Tensor | None) -> None:
        self.obs, self.carry, self.pending_updates = obs, carry, 0

    def advance(self, step: Step, carry: Tensor | None) -> None:
        """Moves to the next iteration, and sets the recurrent state to zero in environments whose episode ended.

        Args:
            step: Newest step of the environments.
            carry: Recurrent state (N, ...) that `act` returned for N environments; None without recurrent state.
        """
        self.obs = step.obs
        self.carry = None if carry is None else carry * broadcast_rows(~step.ended, carry)

    def resume(self, env: VecEnv, tracker: EpisodeTracker) -> None:
        """Adapts the state after a checkpoint was loaded, if some environments could not continue their episode.

        These environments start a new episode, so their recurrent state becomes zero.

        Args:
            env: Environments, restored from the checkpoint.
            tracker: Sums of the current episodes; those of the lost episodes are discarded.
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
    """Returns the names of the time categories for `env.send` and `env.recv` in the phase clock.

    The phase clock measures where training time goes. Environments in this process use "env" for both calls. With
    worker processes, `recv` waits ("env_wait"), and `send` on CUDA copies the actions to the host ("h2d").
    """
    if not env.spec.overlappable:
        return "env", "env"
    return ("h2d" if env.device.type == "cuda" else "env"), "env_wait"
