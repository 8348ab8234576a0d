"""EncodedVecEnv: environments whose observations come with a code of the last steps of the live episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from powerband.data.types import Step, TensorSpec, Tree, VecEnv, rows_like

PARTS = ("state", "action", "reward", "length")


class EncodedVecEnv:
    """Adds ``z`` to the observations of `env`: what an encoder makes of the last states, actions and rewards.

    Args:
        env: Observations are one vector (N, F).
        encoder: A batch of trajectories -> (N, Z).
        view: Observations (N, F) -> states (N, S) that the encoder sees.
        code: Entries of z.
        length: States that the encoder looks back on at most.
        reward_scale: Rewards are multiplied by it before the encoder sees them.
        whole: Observations are {"obs": (N, F), "z"}; False: {"z", "s": (N, S)}.
    """

    def __init__(
        self,
        env: VecEnv,
        encoder: Callable[[dict[str, Tensor]], Tensor],
        view: Callable[[Tensor], Tensor],
        code: int,
        length: int,
        reward_scale: float = 1.0,
        whole: bool = True,
    ) -> None:
        self.env, self.encoder, self.view, self.length, self.whole = env, encoder, view, length, whole
        self.num_envs, self.device, self.reward_scale = env.num_envs, env.device, reward_scale
        states = view(torch.zeros(1, *env.spec.obs.shape)).shape[1:]
        own = {"obs": env.spec.obs} if whole else {"s": TensorSpec(tuple(states))}
        z = {"z": TensorSpec((code,))}
        self.spec = replace(env.spec, obs={**own, **z} if whole else {**z, **own})
        n, device = env.num_envs, env.device
        self.past = {
            "state": torch.zeros(n, length, *states, device=device),
            "action": torch.zeros(n, length - 1, *env.spec.action.shape, device=device),
            "reward": torch.zeros(n, length - 1, 1, device=device),
            "length": torch.ones(n, dtype=torch.int64, device=device),
        }

    @property
    def resumed(self) -> Tensor:
        return self.env.resumed

    def facts(self) -> dict[str, Any]:
        """As the environments say, where they do."""
        said = getattr(self.env, "facts", None)
        return said() if callable(said) else {}

    def reset(self, seed: int | None = None) -> Tree:
        """Starts episode 0 of every environment."""
        obs = self.env.reset(seed)
        self._begin(torch.ones(self.num_envs, dtype=torch.bool, device=self.device), obs)
        self._obs = self._coded(obs)
        return self._obs

    def observe(self) -> Tree:
        """What to act on next."""
        return self._obs

    def send(self, action: Tensor) -> None:
        """Hands over actions (N, A)."""
        self._action = action
        self.env.send(action)

    @torch.no_grad()
    def recv(self) -> Step:
        """Waits for all environments; every row is a real transition."""
        step = self.env.recv()
        ended = step.ended
        self._append(self._action, step.reward, step.next_obs())
        final = None
        if step.final_obs is not None:
            final = self._coded(step.next_obs())
            self._begin(ended, step.obs)
        self._obs = self._coded(step.obs)
        return replace(step, obs=self._obs, final_obs=final)

    def step(self, action: Tensor) -> Step:
        """`send`, then `recv`."""
        self.send(action)
        return self.recv()

    def state_dict(self) -> dict:
        return {"env": self.env.state_dict(), "past": self.past}

    def load_state_dict(self, state: dict) -> None:
        """Goes on; where an episode could not be taken up, its past is forgotten too."""
        self.env.load_state_dict(state["env"])
        for name in PARTS:
            self.past[name].copy_(state["past"][name])
        obs = self.env.observe()
        self._begin(~self.resumed.to(self.device), obs)
        self._obs = self._coded(obs)

    def close(self) -> None:
        self.env.close()

    def _begin(self, rows: Tensor, obs: Tensor) -> None:
        """Forgets the past of `rows` (N,) bool, which now stand at `obs`."""
        past = self.past
        past["length"].masked_fill_(rows, 1)
        past["state"][:, 0] = torch.where(rows_like(rows, obs), self.view(obs), past["state"][:, 0])

    def _append(self, action: Tensor, reward: Tensor, obs: Tensor) -> None:
        past, row = self.past, torch.arange(self.num_envs, device=self.device)
        full = past["length"] == self.length
        for name in ("state", "action", "reward"):
            past[name] = torch.where(rows_like(full, past[name]), past[name].roll(-1, 1), past[name])
        at = torch.where(full, self.length - 1, past["length"])
        past["action"][row, at - 1] = action
        past["reward"][row, at - 1] = reward.unsqueeze(-1) * self.reward_scale
        past["state"][row, at] = self.view(obs)
        past["length"] = at + 1

    def _coded(self, obs: Tensor) -> Tree:
        z = self.encoder(self.past)
        return {"obs": obs, "z": z} if self.whole else {"z": z, "s": self.view(obs)}
