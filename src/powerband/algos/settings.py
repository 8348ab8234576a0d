"""Settings of the algorithms: frozen dataclasses whose strings are the help texts. This file does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from powerband.core.config import at_least
from powerband.core.errors import ConfigError
from powerband.nets.choices import Activation

Communication = Literal["none", "lstm"]


FUSED_SAC_WIDTH = 128
"""Units of a hidden layer up to which SAC's compiled functions are faster than PyTorch."""


@dataclass(frozen=True)
class SACConfig:
    actor_lr: float = 3e-4
    """Adam learning rate of the actor and the temperature."""
    critic_lr: float = 3e-4
    """Adam learning rate of the critics."""
    gamma: float = 0.99
    """Discount per step."""
    tau: float = 0.005
    """Share of the online critics in the target critics at each of their updates."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    target_entropy: float | None = None
    """Target of the entropy, in nats; None is minus the number of action dimensions."""
    initial_alpha: float = 1.0
    """Initial temperature."""
    policy_interval: int = 1
    """Critic updates per update of the actor and the temperature."""
    target_interval: int = 1
    """Critic updates per update of the target critics."""
    obs_scale: float = 1.0
    """Factor on observations before the networks; raise it for small values, such as positions in metres."""
    compile: bool = False
    """Compile the losses with torch.compile."""
    fused: bool = True
    """Compute actions and gradients in compiled functions, several times as fast as PyTorch for narrow layers. Used on
    a CPU in fp32 if no hidden layer has more than 128 units and observations need no encoder."""

    def __post_init__(self) -> None:
        at_least(self, policy_interval=1, target_interval=1)

    @property
    def can_be_fused(self) -> bool:
        """Whether these settings allow the compiled functions of `FusedSAC`."""
        return self.fused and not self.compile and max(self.hidden) <= FUSED_SAC_WIDTH

    @property
    def update_period(self) -> int:
        """Number of updates (calls of `update`) after which the sequence of updated networks repeats."""
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
    """Share of the online networks in the target networks at each of their updates."""
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
        """Number of updates (calls of `update`) after which the sequence of updated networks repeats."""
        return self.policy_interval


@dataclass(frozen=True)
class FastTD3Config:
    actor_lr: float = 3e-4
    """AdamW learning rate of the actor."""
    critic_lr: float = 3e-4
    """AdamW learning rate of the critics."""
    weight_decay: float = 0.0
    """Weight decay of AdamW; the authors use 0.1 for humanoids."""
    gamma: float = 0.99
    """Discount per step."""
    tau: float = 0.05
    """Share of the online networks in the target networks at each of their updates."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the actor's hidden layers."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    atoms: int = 101
    """Values whose probabilities the critics learn."""
    value_limit: float = 0.0
    """Largest absolute value of the atoms, in units of the rewards that the critics receive; 0 is 2 / (1 - gamma)."""
    normalize_obs: bool = True
    """Normalise observations with running statistics, which are part of the policy."""
    normalize_reward: bool = True
    """Divide rewards by their root mean square in all batches, so that `value_limit` suits rewards of any size."""
    policy_interval: int = 2
    """Critic updates per update of the actor."""
    min_noise: float = 0.05
    """Smallest standard deviation of an environment's exploration noise, in units of half the action range."""
    max_noise: float = 0.4
    """Largest standard deviation; the environments are spread evenly over the range."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: float = 0.5
    """Largest absolute noise on the target policy's actions."""
    compile: bool = False
    """Compile the losses with torch.compile."""

    def __post_init__(self) -> None:
        at_least(self, policy_interval=1, atoms=2, value_limit=0, weight_decay=0, target_noise=0, target_noise_clip=0)
        if not 0 <= self.min_noise <= self.max_noise:
            raise ConfigError(
                f"fast_td3.min_noise={self.min_noise:g}, fast_td3.max_noise={self.max_noise:g}: both must be at least "
                f"0, and the minimum must not exceed the maximum. Write fast_td3.min_noise=0.05 and max_noise=0.4."
            )
        if not 0 < self.gamma < 1:
            raise ConfigError(f"fast_td3.gamma={self.gamma:g} is not between 0 and 1. Write fast_td3.gamma=0.99.")

    @property
    def update_period(self) -> int:
        """Number of updates in one cycle; every cycle updates the same networks in the same order."""
        return self.policy_interval


@dataclass(frozen=True)
class DQNConfig:
    lr: float = 5e-4
    """Adam learning rate."""
    gamma: float = 0.99
    """Discount per step."""
    tau: float = 0.005
    """Share of the online network in the target network at each of its updates; 1 copies the network."""
    target_interval: int = 1
    """Updates of the network per update of the target network."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    double: bool = True
    """Choose the next action by the online network and evaluate it by the target network (double Q-learning)."""
    dueling: bool = False
    """Estimate the value of the state and the advantages of the actions separately."""
    quantiles: int = 0
    """Quantiles of the return per action (quantile regression, QR-DQN), for example 50; 0 learns the mean only."""
    huber_delta: float = 1.0
    """Error above which the loss is linear instead of quadratic (Huber loss)."""
    max_grad_norm: float | None = 10.0
    """Largest 2-norm of the gradients; larger gradients are clipped, None clips nothing."""
    epsilon_start: float = 1.0
    """Initial probability of a random action."""
    epsilon_end: float = 0.05
    """Probability of a random action after `epsilon_steps`."""
    epsilon_steps: int = 10_000
    """Environment steps, over all ranks, over which the probability falls linearly."""
    compile: bool = False
    """Compile the loss with torch.compile."""

    def __post_init__(self) -> None:
        at_least(self, target_interval=1, quantiles=0, epsilon_steps=1)
        if not 0 <= self.epsilon_end <= self.epsilon_start <= 1:
            raise ConfigError(
                f"dqn.epsilon_start={self.epsilon_start}, dqn.epsilon_end={self.epsilon_end}: both must be 0 to 1, "
                f"and the end must not exceed the start. Write dqn.epsilon_start=1 and dqn.epsilon_end=0.05."
            )
        if self.huber_delta <= 0:
            raise ConfigError(f"dqn.huber_delta={self.huber_delta:g} is not above 0. Write dqn.huber_delta=1.")

    @property
    def update_period(self) -> int:
        """Number of updates in one cycle; every cycle updates the same networks in the same order."""
        return self.target_interval


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
    """Largest change of a value from that of the rollout; None does not clip values."""
    expert_coef: float = 0.0
    """Weight of the cross-entropy with expert actions, if the environment provides them (kickstarting, Schmitt et al.
    2018, equation 4, with a deterministic expert)."""
    target_kl: float | None = None
    """Mini-batches with a KL divergence above 1.5 times this value train the value only; None has no limit."""
    max_grad_norm: float = 0.5
    """Largest 2-norm of the gradients; larger gradients are clipped."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Activation function between the hidden layers."""
    shared_trunk: bool = True
    """Share one trunk between policy and value; false builds two (a central critic needs this)."""
    gru: int = 0
    """Width of the recurrent layer (GRU) after the trunk; 0 builds none."""
    normalize_obs: bool = False
    """Normalise features with running statistics, which are updated once per rollout."""
    log_std: float = 0.0
    """Initial log standard deviation of continuous actions, in units of half their range."""
    fused: bool = False
    """Compute actions and updates of at most 1,024 rows in one compiled function, which saves the overhead of PyTorch.
    It supports two tanh trunks in fp32 on a CPU, without GRU, image network, central critic and compile; otherwise it
    has no effect."""
    compile: bool = False
    """Compile the loss with torch.compile."""

    @property
    def can_be_fused(self) -> bool:
        """Whether `fused` is set and supports the other settings."""
        return self.fused and not self.shared_trunk and self.activation == "tanh" and not self.compile


@dataclass(frozen=True)
class DDPGConfig:
    actor_lr: float = 1e-4
    """Adam learning rate of the actor."""
    critic_lr: float = 1e-4
    """Adam learning rate of the critic."""
    gamma: float = 0.95
    """Discount per step."""
    tau: float = 0.001
    """Share of the online networks in the target networks at each update."""
    hidden: int = 256
    """Width of the two hidden layers."""
    communicate: Communication = "none"
    """Communication between agents: none is DDPG with shared weights, lstm is BiCNet with a bidirectional LSTM."""
    max_grad_norm: float = 1.0
    """Largest 2-norm of the gradients; larger gradients are clipped."""
    epsilon: float = 0.5
    """Initial probability of a random action vector."""
    epsilon_decay: float = 0.99998
    """Factor on epsilon per environment step; a step of N environments counts N."""
    logit_penalty: float = 1e-3
    """Weight of the mean squared logit in the actor's loss; it prevents saturation of the softmax."""
    compile: bool = False
    """Compile the losses with torch.compile."""


@dataclass(frozen=True)
class COMAConfig:
    actor_lr: float = 1e-5
    """Adam learning rate of the actor."""
    critic_lr: float = 1e-4
    """Adam learning rate of the critic."""
    epsilon_start: float = 0.5
    """Initial share of the uniform distribution in the policy."""
    epsilon_end: float = 0.02
    """Share of the uniform distribution after `epsilon_episodes`."""
    epsilon_episodes: int = 10_000
    """Episodes, over all ranks, over which the share falls linearly."""
    target_interval: int = 10
    """Rollouts per copy of the critic to the target critic."""
    width: int = 256
    """Channels of every layer of both networks."""
    max_grad_norm: float | None = 10.0
    """Largest 2-norm of the gradients of each network; larger gradients are clipped, None clips nothing."""
    sampled_advantage: bool = False
    """Use the advantage G - sum pi Q of the sampled return instead of Q(s, a) - sum pi Q; IAC always does."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, in addition to the exploration of epsilon."""
    normalize_advantage: bool = False
    """Normalise the advantages of a mini-batch to mean 0 and standard deviation 1, on each rank."""
    compile: bool = False
    """Compile the losses with torch.compile."""

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon_end <= self.epsilon_start <= 1:
            raise ConfigError(
                f"coma.epsilon_start={self.epsilon_start}, coma.epsilon_end={self.epsilon_end}: both must be 0 to 1, "
                f"and the end must not exceed the start. Write coma.epsilon_start=0.5 and coma.epsilon_end=0.02."
            )
        at_least(self, epsilon_episodes=1, target_interval=1, width=1)


@dataclass(frozen=True)
class ChunkConfig:
    lr: float = 1e-4
    """Learning rate of AdamW."""
    weight_decay: float = 1e-4
    """Weight decay of AdamW."""
    max_grad_norm: float = 1.0
    """Largest 2-norm of the gradients; larger gradients are clipped."""
    ema: float = 0.999
    """Largest decay of the averaged weights, which act; update n uses (1 + n) / (10 + n) if that is less."""
    horizon: int = 16
    """Actions per chunk."""
    exec_horizon: int = 4
    """Actions of a chunk that are executed before the next chunk is sampled."""
    frames: int = 3
    """Newest camera images in one observation."""
    unet: tuple[int, ...] = (256, 512, 1024)
    """Channels of the levels of the U-Net."""
    noise_steps: int = 1000
    """Diffusion steps in training."""
    predict: Literal["epsilon", "sample"] = "epsilon"
    """Prediction of the network: epsilon is the noise, sample the chunk."""
    sampler: Literal["ddim", "dpm"] = "ddim"
    """Sampler of chunks: DDIM or DPM-Solver++."""
    sample_steps: int = 10
    """Steps of the sampler."""

    def __post_init__(self) -> None:
        if not 1 <= self.exec_horizon <= self.horizon:
            raise ConfigError(
                f"chunks.exec_horizon={self.exec_horizon} is outside 1 to chunks.horizon={self.horizon}. Write a "
                f"value in this range."
            )
        at_least(self, frames=1)
        if not 0 <= self.ema < 1:
            raise ConfigError(
                f"chunks.ema={self.ema:g} must be at least 0 and less than 1. Write chunks.ema=0.999, or chunks.ema=0 "
                f"to act with the newest weights."
            )
        if not 1 <= self.sample_steps <= self.noise_steps:
            raise ConfigError(
                f"chunks.sample_steps={self.sample_steps} is outside 1 to chunks.noise_steps={self.noise_steps}. "
                f"Write a value in this range."
            )
