"""Settings of the algorithms: frozen dataclasses whose strings are the help texts. This file does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from powerband.core.config import at_least
from powerband.core.errors import ConfigError
from powerband.nets.choices import Activation

Communication = Literal["none", "lstm"]


@dataclass(frozen=True)
class SACConfig:
    actor_lr: float = 3e-4
    """Adam learning rate of the actor and of the temperature."""
    critic_lr: float = 3e-4
    """Adam learning rate of the critics."""
    gamma: float = 0.99
    """Discount of a step."""
    tau: float = 0.005
    """Share of the online critics that the target critics take over at each update."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    target_entropy: float | None = None
    """Entropy that the temperature steers to, in nats; None is minus the number of action dimensions."""
    initial_alpha: float = 1.0
    """Temperature at the start."""
    policy_interval: int = 1
    """Actor and temperature are updated at each of this many critic updates."""
    target_interval: int = 1
    """The target critics follow at each of this many critic updates."""
    obs_scale: float = 1.0
    """Observations are multiplied by this before the networks: positions in metres are small for their first layer."""
    compile: bool = False
    """torch.compile the losses."""

    def __post_init__(self) -> None:
        at_least(self, policy_interval=1, target_interval=1)

    @property
    def update_period(self) -> int:
        """Number of updates after which the sequence of updates repeats."""
        return math.lcm(self.policy_interval, self.target_interval)


@dataclass(frozen=True)
class TD3Config:
    actor_lr: float = 3e-4
    """Adam learning rate of the actor."""
    critic_lr: float = 3e-4
    """Adam learning rate of the critics."""
    gamma: float = 0.99
    """Discount per step."""
    tau: float = 0.005
    """Share of the online networks that the target networks take over at each of their updates."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    policy_interval: int = 2
    """Critic updates per update of the actor and the target networks."""
    exploration_noise: float = 0.1
    """Standard deviation of the exploration noise, in units of half the action range."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: float = 0.5
    """Largest absolute noise on the target policy's actions."""
    compile: bool = False
    """Compile the losses with torch.compile."""

    def __post_init__(self) -> None:
        at_least(self, policy_interval=1, exploration_noise=0, target_noise=0, target_noise_clip=0)

    @property
    def update_period(self) -> int:
        """Number of updates after which the sequence of updates repeats."""
        return self.policy_interval


@dataclass(frozen=True)
class PPOConfig:
    lr: float = 3e-4
    """Adam learning rate."""
    clip: float = 0.2
    """Range of the probability ratio, 1 - clip to 1 + clip."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    value_clip: float | None = None
    """Values move at most this far from the rollout's; None does not clip them."""
    expert_coef: float = 0.0
    """Weight of the cross-entropy with the expert's actions, where the environment shows them; kickstarting,
    Schmitt et al. 2018, equation 4, the expert's policy being certain."""
    target_kl: float | None = None
    """A mini-batch whose KL from the rollout's policy is above 1.5 times this trains the value alone."""
    max_grad_norm: float = 0.5
    """Gradients are clipped to this 2-norm."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Between the hidden layers."""
    shared_trunk: bool = True
    """One trunk for policy and value; false gives each its own (and a central critic its state)."""
    gru: int = 0
    """Width of the memory (GRU) after the trunk; 0 is none."""
    normalize_obs: bool = False
    """Normalises features with running statistics, taken in once a rollout."""
    log_std: float = 0.0
    """Log standard deviation of a continuous action at the start, in units of half its range."""
    compile: bool = False
    """torch.compile the loss."""


@dataclass(frozen=True)
class DDPGConfig:
    actor_lr: float = 1e-4
    """Adam learning rate of the actor."""
    critic_lr: float = 1e-4
    """Adam learning rate of the critic."""
    gamma: float = 0.95
    """Discount of a step."""
    tau: float = 0.001
    """Share of the online networks that the target networks take over at each update."""
    hidden: int = 256
    """Width of the two hidden layers."""
    communicate: Communication = "none"
    """none is DDPG with shared weights; lstm is BiCNet, a bidirectional LSTM across the agents."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this 2-norm."""
    epsilon: float = 0.5
    """Probability of a uniform action vector at the start."""
    epsilon_decay: float = 0.99998
    """Factor on epsilon for each environment step (of one environment; N environments count N)."""
    logit_penalty: float = 1e-3
    """Weight of the mean squared logit in the actor's loss: keeps the softmax out of corners without a gradient."""
    compile: bool = False
    """torch.compile the two losses."""


@dataclass(frozen=True)
class COMAConfig:
    actor_lr: float = 1e-5
    """Adam learning rate of the actor."""
    critic_lr: float = 1e-4
    """Adam learning rate of the critic."""
    epsilon_start: float = 0.5
    """Share of uniform choice in the policy at the start."""
    epsilon_end: float = 0.02
    """And after `epsilon_episodes`."""
    epsilon_episodes: int = 10_000
    """Episodes over all ranks in which the share falls linearly."""
    target_interval: int = 10
    """Rollouts after which the target critic becomes a copy of the critic."""
    width: int = 256
    """Channels of every layer of both networks."""
    max_grad_norm: float | None = 10.0
    """Gradients are clipped to this 2-norm, actor and critic each."""
    sampled_advantage: bool = False
    """An action is worth what followed it, G - sum pi Q, not what the critic says, Q(s, a) - sum pi Q (IAC: always)."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus beside the exploration of epsilon."""
    normalize_advantage: bool = False
    """Advantages of a mini-batch to mean 0 and deviation 1 (each rank its own part)."""
    compile: bool = False
    """torch.compile the losses."""

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon_end <= self.epsilon_start <= 1:
            raise ValueError(
                f"epsilon_start={self.epsilon_start}, epsilon_end={self.epsilon_end}: exploration falls, within 0..1."
            )
        at_least(self, epsilon_episodes=1, target_interval=1, width=1)


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
    exec_horizon: int = 4
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
        if not 1 <= self.exec_horizon <= self.horizon:
            raise ConfigError(f"exec_horizon={self.exec_horizon}: give 1 to horizon={self.horizon}.")
        at_least(self, frames=1)
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema={self.ema:g}: give 0 (the newest weights act) up to, but not, 1.")
        if not 1 <= self.sample_steps <= self.noise_steps:
            raise ConfigError(f"sample_steps={self.sample_steps}: give 1 to noise_steps={self.noise_steps}.")
