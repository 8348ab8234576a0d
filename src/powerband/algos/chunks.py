"""Policies of action chunks, learned from demonstrations: a diffusion policy, and cloning with the same encoder.

Source: Chi et al. 2023 ("Diffusion Policy"); Ho et al. 2020, equation 14; noise schedules and samplers are diffusers'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.algos.averaged import follow, follower
from powerband.algos.diffusion import drawn, noise_schedule
from powerband.core.accelerated import AcceleratedAdam
from powerband.core.distributed import Ranks
from powerband.core.flags import ConfigError, at_least
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.types import Tree, tree_leaves
from powerband.nets.chunk_policy import ChunkPolicy, nearest

Kind = Literal["diffusion", "clone"]


@dataclass(frozen=True)
class ChunkConfig:
    lr: float = 1e-4
    """Learning rate of AdamW."""
    weight_decay: float = 1e-4
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this 2-norm."""
    ema: float = 0.999
    """Most that the averaged weights, which act, keep of themselves at an update; (1 + n) / (10 + n) at first."""
    horizon: int = 16
    """Actions of a chunk."""
    execute: int = 4
    """Actions of a chunk that are taken before the next is made."""
    frames: int = 3
    """Newest pictures of the camera that are seen together."""
    unet: tuple[int, ...] = (256, 512, 1024)
    """Channels of the U-Net's levels."""
    noise_steps: int = 1000
    """Steps of diffusion in training."""
    predict: Literal["epsilon", "sample"] = "epsilon"
    """What the network says: the noise, or the chunk."""
    sampler: Literal["ddim", "dpm"] = "ddim"
    """How chunks are drawn: DDIM, or DPM-Solver++."""
    sample_steps: int = 10
    """Steps of the sampler."""

    def __post_init__(self) -> None:
        if not 1 <= self.execute <= self.horizon:
            raise ConfigError(f"execute={self.execute}: give 1 to horizon={self.horizon}.")
        at_least(self, frames=1)
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema={self.ema:g}: give 0 (the newest weights act) up to, but not, 1.")
        if not 1 <= self.sample_steps <= self.noise_steps:
            raise ConfigError(f"sample_steps={self.sample_steps}: give 1 to noise_steps={self.noise_steps}.")


class Chunks:
    """Learner for the offline loop.

    Attributes:
        policy: What is trained. acting: Its weights averaged over updates; chunks are made with these.
    """

    def __init__(
        self,
        kind: Kind,
        config: ChunkConfig,
        encoder: nn.Module,
        table: Tensor,
        ranks: Ranks,
        precision: Precision,
        noise: NoiseSource,
    ) -> None:
        """
        Args:
            kind: diffusion, or clone.
            config: Rates and sizes.
            encoder: Observations -> (rows, encoder.width).
            table: (K, A) float32: the code of each action, in -1..1; the nearest one decodes.
            ranks, precision, noise: Of the run.
        """
        self.kind, self.config, self.precision, self.noise = kind, config, precision, noise
        self.table = table.to(ranks.device)
        actions, codes = table.shape
        unet = config.unet if kind == "diffusion" else None
        self.policy = ChunkPolicy(encoder, config.horizon, actions, codes, unet).to(ranks.device)
        self.acting = follower(self.policy)
        self.adam = AcceleratedAdam(
            self.policy,
            config.lr,
            ranks=ranks,
            precision=precision,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
        )
        self.schedule = noise_schedule(config) if kind == "diffusion" else None
        self.updates = 0

    @property
    def encoder(self) -> nn.Module:
        """Of the weights that act."""
        return self.acting.encoder

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """One step on demonstrated chunks.

        Args:
            batch: obs, a tree with leaves (R, ...); action (R, T) int64.

        Returns:
            0-d figures, detached.
        """
        action = batch["action"]
        if self.schedule is None:
            logits = self.adam.forward(batch["obs"])
            loss = F.cross_entropy(logits.flatten(0, 1), action.flatten())
            figures = {"losses/agreement": (logits.argmax(-1) == action).float().mean().detach()}
        else:
            chunk = self.table[action]
            noise = self.noise("chunks/noise", len(action)).normal(*chunk.shape[1:])
            step = self.noise("chunks/step", len(action)).integers(self.config.noise_steps).view(-1)
            noisy = self.schedule.add_noise(chunk, noise, step)
            said = self.adam.forward(batch["obs"], noisy, step)
            loss = F.mse_loss(said, noise if self.config.predict == "epsilon" else chunk)
            figures = {}
        norm = self.adam.step(loss)
        self.updates += 1
        keep = min(self.config.ema, (1 + self.updates) / (10 + self.updates))
        follow(self.acting, self.policy, keep)
        return {f"losses/{self.kind}": loss.detach(), "losses/grad_norm": norm, **figures}

    @torch.no_grad()
    def act(self, obs: Tree, carry: None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Chunks of actions (R, T) int64."""
        with self.precision.autocast():
            seen = self.acting.observe(obs)
            if self.acting.logits is not None:
                return self.acting.logits(seen).view(-1, *self.acting.shape).argmax(-1), {}, None
            rows = len(tree_leaves(obs)[0])
            chunk = self.noise("chunks/sample", rows).normal(self.config.horizon, self.table.shape[1])
            chunk = drawn(self.config, chunk, lambda noisy, step: self.acting.unet(noisy, step, seen))
        return nearest(chunk, self.table), {}, None

    def initial_carry(self, num_envs: int) -> None:
        return None

    def policy_state(self) -> dict[str, Tensor]:
        """The averaged weights."""
        return self.acting.state_dict()

    def state_dict(self) -> dict:
        """Everything that training goes on from (live tensors, not copies)."""
        return {
            **{name: getattr(self, name).state_dict() for name in ("policy", "acting", "adam", "noise")},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict`."""
        for name in ("policy", "acting", "adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.updates = int(state["updates"])
