"""EncodedVecEnv: provides the vector that a trained encoder computes from the last steps of each episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from powerband.data.types import EnvHalf, Step, TensorSpec, Tree, VecEnv, broadcast_rows

HISTORY_KEYS = ("state", "action", "reward", "length")


class EncodedVecEnv:
    """Wraps environments and provides the code of the last steps of each episode.

    A code is a vector that a trained encoder computes from the last states, actions and rewards. One row is one of the
    N environments. Observations are dicts with the entries `keys`: ``obs`` (N, F), the original observation; ``z`` (N,
    Z), the code; ``s`` (N, S), the state for the encoder. Codes that are needed for some of the environments only come
    from `codes`; without ``z`` in `keys`, no other code is computed.

    Args:
        env: N environments whose observations are one vector of F entries each, (N, F).
        encoder: Function from the last steps of N episodes to codes (N, Z), such as `TrajectoryEncoder.encode`.
        select_state: Function from observations (N, F) to states (N, S entries) for the encoder.
        code: Z, the number of entries of a code.
        length: Largest number of past states that the encoder sees.
        reward_scale: Factor on rewards for the encoder.
        keys: Entries of an observation: some of ``obs``, ``z`` and ``s``.

    Attributes:
        resumed: (N,) bool: rows whose episode continued after `load_state_dict`.
    """

    def __init__(
        self,
        env: VecEnv,
        encoder: Callable[[dict[str, Tensor]], Tensor],
        select_state: Callable[[Tensor], Tensor],
        code: int,
        length: int,
        reward_scale: float = 1.0,
        keys: tuple[str, ...] = ("obs", "z"),
    ) -> None:
        self.env, self.encoder, self.select_state, self.length = env, encoder, select_state, length
        self.num_envs, self.device = env.num_envs, env.device
        self.reward_scale, self.keys = reward_scale, keys
        self.halves: tuple[EnvHalf, ...] = ()
        self.resumed = env.resumed
        n, device, state = env.num_envs, env.device, select_state(torch.zeros(1, *env.spec.obs.shape)).shape[1:]
        specs = {"obs": env.spec.obs, "z": TensorSpec((code,)), "s": TensorSpec(tuple(state))}
        self.spec = replace(env.spec, obs={key: specs[key] for key in keys})
        self.history = {
            "state": torch.zeros(n, length, *state, device=device),
            "action": torch.zeros(n, length - 1, *env.spec.action.shape, device=device),
            "reward": torch.zeros(n, length - 1, 1, device=device),
            "length": torch.ones(n, dtype=torch.int64, device=device),
        }

    def worker_statistics(self) -> dict[str, Any]:
        """Returns measurements of the worker processes of the wrapped environments, such as seconds per step."""
        return self.env.worker_statistics()

    def reset(self, seed: int | None = None) -> Tree:
        """Starts episode 0 of every environment and returns the first observations, with codes.

        `seed` is passed to the wrapped environments; None uses their own seed.
        """
        obs = self.env.reset(seed)
        self._restart(torch.ones(self.num_envs, dtype=torch.bool, device=self.device), obs)
        self._obs = self._encoded(obs)
        return self._obs

    def observe(self) -> Tree:
        """Returns the current observations."""
        return self._obs

    def send(self, action: Tensor) -> None:
        """Starts a step with actions (N, A): A entries for each of the N environments."""
        self._action = action
        self.env.send(action)

    @torch.no_grad()
    def recv(self) -> Step:
        """Waits for all environments, and returns their step with codes in the observations."""
        step = self.env.recv()
        self._append(self._action, step.reward, step.next_obs())
        final = None
        if step.final_obs is not None:
            final = self._encoded(step.next_obs())
            self._restart(step.ended, step.obs)
        self._obs = self._encoded(step.obs)
        return replace(step, obs=self._obs, final_obs=final)

    def step(self, action: Tensor) -> Step:
        """Steps all environments with actions (N, A): calls `send`, then `recv`."""
        self.send(action)
        return self.recv()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the wrapped environments and the last steps of their episodes, for a checkpoint."""
        return {"env": self.env.state_dict(), "past": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`. Rows whose episode could not be continued start with an empty history."""
        self.env.load_state_dict(state["env"])
        self.resumed = self.env.resumed
        for name in HISTORY_KEYS:
            self.history[name].copy_(state["past"][name])
        obs = self.env.observe()
        self._restart(~self.resumed.to(self.device), obs)
        self._obs = self._encoded(obs)

    def close(self) -> None:
        """Closes the wrapped environments."""
        self.env.close()

    def _restart(self, rows: Tensor, obs: Tensor) -> None:
        """Clears the history of the environments in the mask `rows` (N,), whose new episodes start at `obs` (N, F)."""
        history = self.history
        history["length"].masked_fill_(rows, 1)
        history["state"][:, 0] = torch.where(broadcast_rows(rows, obs), self.select_state(obs), history["state"][:, 0])

    def _append(self, action: Tensor, reward: Tensor, obs: Tensor) -> None:
        """Appends a transition to the history of every environment; a full history drops its oldest transition."""
        history, row = self.history, torch.arange(self.num_envs, device=self.device)
        full = history["length"] == self.length
        for name in ("state", "action", "reward"):
            history[name] = torch.where(broadcast_rows(full, history[name]), history[name].roll(-1, 1), history[name])
        at = torch.where(full, self.length - 1, history["length"])
        history["action"][row, at - 1] = action
        history["reward"][row, at - 1] = reward.unsqueeze(-1) * self.reward_scale
        history["state"][row, at] = self.select_state(obs)
        history["length"] = at + 1

    def codes(self, rows: Tensor) -> Tensor:
        """Computes the codes (n, Z) of the n environments in the mask `rows` (N,) from their present histories."""
        return self.encoder({name: past[rows] for name, past in self.history.items()})

    def _encoded(self, obs: Tensor) -> Tree:
        """Returns observations with the entries `keys`, from the original ones (N, F) and the present histories."""
        entries: dict[str, Callable[[], Tensor]] = {
            "obs": lambda: obs,
            "z": lambda: self.encoder(self.history),
            "s": lambda: self.select_state(obs),
        }
        return {key: entries[key]() for key in self.keys}
