"""RDT: a diffusion transformer learns, from demonstrations, chunks of actions that instructions and pictures ask for.

Source: Liu et al. 2024, arXiv 2410.07864, section 4 and appendix; noise schedules and samplers are diffusers'.
Suffixes: R rows, T actions of a chunk, V numbers of an action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from powerband.algos.averaged import follow, follower
from powerband.algos.diffusion import drawn, noise_schedule
from powerband.core.distributed import Ranks
from powerband.core.flags import ConfigError, at_least
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.core.zero import launched_adam
from powerband.data.types import Tree, tree_map
from powerband.nets.jitter import DRAWS
from powerband.nets.rdt_policy import RDTPolicy


@dataclass(frozen=True)
class RDTConfig:
    lr: float = 1e-4
    """Learning rate of AdamW, constant after the warm-up."""
    warmup: int = 500
    """Updates in which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    eps: float = 1e-8
    """Added to the root of AdamW's second moment."""
    weight_decay: float = 0.01
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this 2-norm."""
    accumulation: int = 1
    """Parts of a rank's batch that are computed one after the other and make one update: less memory, the same step."""
    ema_power: float = 0.75
    """Averaged weights, which act, keep 1 - (1 + n) ** -ema_power of themselves at update n, counted from 0."""
    ema_most: float = 0.9999
    """Most that they keep."""
    horizon: int = 64
    """Actions of a chunk."""
    execute: int = 16
    """Actions of a chunk that are taken before the next is made."""
    noise_steps: int = 1000
    """Steps of diffusion in training."""
    sample_steps: int = 5
    """Steps of the sampler, DPM-Solver++."""
    drop_condition: float = 0.1
    """Probability with which training hides the state, each picture, the instruction and the control frequency."""
    state_snr_db: float = 40.0
    """Noise on the state in training: this many decibels below its deviation; inf is none."""
    augment: float = 0.5
    """Share of the cameras whose pictures training moves and lights otherwise; not where features come in."""
    checkpoint_activations: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, a third more time."""
    compile: bool = False
    """Let torch.compile make the training step's kernels: faster updates after some minutes of waiting; on a CPU it
    needs a C++ compiler."""

    predict: ClassVar[str] = "sample"
    sampler: ClassVar[str] = "dpm"

    def __post_init__(self) -> None:
        at_least(self, accumulation=1, warmup=0, sample_steps=1, execute=1)
        if self.execute > self.horizon:
            raise ConfigError(f"execute={self.execute}: give 1 to horizon={self.horizon}.")
        if self.sample_steps > self.noise_steps:
            raise ConfigError(f"sample_steps={self.sample_steps}: give 1 to noise_steps={self.noise_steps}.")
        if not 0 <= self.ema_most < 1:
            raise ConfigError(f"ema_most={self.ema_most:g}: give 0 (the newest weights act) up to, but not, 1.")
        for name in ("drop_condition", "augment"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name):g}: give a probability, 0 to 1.")


class RDTLearner:
    """Learner for the offline loop.

    Attributes:
        policy: What is trained. acting: Its weights averaged over updates; chunks are made with these.
        updates: How many were made.
    """

    def __init__(
        self, config: RDTConfig, policy: RDTPolicy, ranks: Ranks, precision: Precision, noise: NoiseSource
    ) -> None:
        """
        Args:
            config: Rates and sizes.
            policy: With its statistics and instructions.
            ranks, precision, noise: Of the run.

        Raises:
            ConfigError: The policy makes chunks of another length.
        """
        if policy.shape.horizon != config.horizon:
            raise ConfigError(f"horizon={config.horizon}: this policy makes chunks of {policy.shape.horizon} actions.")
        self.config, self.ranks, self.precision, self.noise = config, ranks, precision, noise
        self.policy = policy.to(ranks.device)
        self.policy.model.checkpoint_activations = config.checkpoint_activations
        self.acting = follower(self.policy)
        if config.compile:
            self.policy.compile()
        self.adam = launched_adam(
            self.policy,
            config.lr,
            ranks=ranks,
            precision=precision,
            weight_decay=config.weight_decay,
            betas=config.betas,
            eps=config.eps,
            max_grad_norm=config.max_grad_norm,
        )
        self.schedule = noise_schedule(config)
        self.updates = 0

    @property
    def device(self) -> torch.device:
        """Where batches and observations are wanted."""
        return self.ranks.device

    def speak(self, tokens: Tensor, there: Tensor) -> None:
        """Instructions from now on, of both weights; see `RDTPolicy.speak`."""
        for policy in (self.policy, self.acting):
            policy.speak(tokens, there)

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """One step on demonstrated chunks.

        The loss is the mean over everything that counts in the batches of all ranks: numbers that an action has, of
        steps that an episode has. Neither the ranks nor the parts that a batch is split into change it.

        Args:
            batch: obs, see `RDTPolicy`; action (R, T, V) float32 raw; action_there (R, V) bool: numbers that actions
                have; valid (R, T) bool: steps before the episode's end. What the others hold is not looked at.

        Returns:
            0-d figures, detached.
        """
        config, there, valid = self.config, batch["action_there"], batch["valid"]
        counts = there.unsqueeze(1) & valid.unsqueeze(2)
        chunk = self.acting.normalised("action", batch["action"], counts)
        rows = len(chunk)
        noise = self.noise("rdt/noise", rows).normal(*chunk.shape[1:])
        step = self.noise("rdt/step", rows).integers(config.noise_steps).view(-1)
        whole = {
            "obs": batch["obs"],
            "noisy": self.schedule.add_noise(chunk, noise, step),
            "there": there,
            "step": step,
            "hidden": self._hidden(batch["obs"]),
            "chunk": chunk,
            "counts": counts,
        }
        # Ranks average their gradients: each divides its sum by the mean of their counts.
        count = self.ranks.average_(counts.sum().to(chunk.dtype)).clamp(min=1)
        self.adam.lr = config.lr * min(1.0, (self.updates + 1) / max(1, config.warmup))
        parts, total = min(config.accumulation, rows), torch.zeros_like(count)
        for number in range(parts):
            piece = slice(number * rows // parts, (number + 1) * rows // parts)
            part = tree_map(lambda leaf, piece=piece: leaf[piece], whole)
            with self.adam.part(last=number == parts - 1):
                said = self.adam.forward(*(part[name] for name in ("obs", "noisy", "there", "step", "hidden")))
                loss = torch.where(part["counts"], said - part["chunk"], 0.0).square().sum() / count
                norm = self.adam.step(loss)
            total += loss.detach()
        follow(self.acting, self.policy, min(config.ema_most, 1 - (1 + self.updates) ** -config.ema_power))
        self.updates += 1
        return {"losses/rdt": total, "losses/grad_norm": norm}

    def _hidden(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What `RDTPolicy.condition` keeps from the policy or disturbs, of all rows."""
        config, rows = self.config, len(obs["state"])
        there = obs.get("pictures_there")
        frames, cameras = (0, 0) if there is None else there.shape[1:]
        hide = self.noise("rdt/hidden", rows).uniform(3 + frames * cameras) < config.drop_condition
        noise = self.noise("rdt/state", rows).normal(obs["state"].shape[1])
        hidden = {"state": hide[:, 0], "language": hide[:, 1], "hz": hide[:, 2]}
        hidden["state_noise"] = noise * 10 ** (-config.state_snr_db / 20)
        if there is not None:
            hidden["pictures"] = hide[:, 3:].view(rows, frames, cameras)
        if "pictures" in obs and config.augment:
            drawn = self.noise("rdt/jitter", rows).uniform(cameras, DRAWS + 1)
            hidden["jitter"] = (2 * drawn[..., 1:] - 1) * (drawn[..., :1] < config.augment)
        return hidden

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], carry: None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Draws chunks.

        Args:
            obs: See `RDTPolicy`; ``action_there`` (R, V) bool may be among it, else it is the policy's.
            carry, explore: Not used.

        Returns:
            Raw actions (R, T, V), 0 where an action has no such number; what `update` wants beside them; None.
        """
        policy, rows = self.acting, len(obs["state"])
        there = obs.get("action_there", policy.action_there.expand(rows, -1))
        with self.precision.autocast():
            seen = policy.condition(obs)
            chunk = self.noise("rdt/sample", rows).normal(policy.shape.horizon, policy.shape.vector)
            chunk = drawn(self.config, chunk, lambda noisy, step: policy.denoise(seen, noisy, there, step))
        valid = torch.ones_like(chunk[..., 0], dtype=torch.bool)
        return policy.raw_actions(chunk, there.unsqueeze(1)), {"action_there": there, "valid": valid}, None

    def initial_carry(self, num_envs: int) -> None:
        return None

    def policy_state(self) -> dict[str, Tensor]:
        """The averaged weights, with the statistics."""
        return self.acting.state_dict()

    def gather(self) -> None:
        """Makes the next `state_dict` of the leading rank whole, where weights lie in shards; a collective."""
        self.adam.gather()

    def state_dict(self) -> dict:
        """Everything that training goes on from (live tensors, not copies).

        Where weights lie in shards it is whole once after `gather`, on the leading rank; else what this rank holds.
        """
        parts = {name: getattr(self, name).state_dict() for name in ("acting", "adam", "noise")}
        return {"policy": self.adam.weights(), **parts, "updates": self.updates}

    def load_state_dict(self, state: dict) -> None:
        """Restores a whole `state_dict`."""
        self.adam.load_weights(state["policy"])
        for name in ("acting", "adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.updates = int(state["updates"])
