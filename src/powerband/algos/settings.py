"""Settings of the algorithms: frozen dataclasses whose strings are the help texts. This file does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from powerband.core.config.ranges import (
    Coefficient,
    Finite,
    Interval,
    LearningRate,
    NoiseScale,
    NonNegative,
    Positive,
    PositiveCount,
    PositiveShare,
    Range,
    Share,
    WeightDecay,
    Width,
    WidthOrZero,
    Widths,
    check_ranges,
)
from powerband.core.errors import ConfigError
from powerband.nets.choices import Activation

Communication = Literal["none", "lstm"]
ActionNoise = Literal["white", "pink"]


@dataclass(frozen=True)
@check_ranges
class SACConfig:
    actor_lr: LearningRate = 3e-4
    """Adam learning rate of the actor and the temperature."""
    critic_lr: LearningRate = 3e-4
    """Adam learning rate of the critics."""
    gamma: Share = 0.99
    """Discount per step."""
    tau: PositiveShare = 0.005
    """Share of the online critics in the target critics at each of their updates."""
    hidden: Widths = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    target_entropy: Finite | None = None
    """Target of the entropy, in nats; None is minus the number of action dimensions."""
    initial_alpha: Positive = 1.0
    """Initial temperature."""
    policy_interval: Interval = 1
    """Critic updates per update of the actor and the temperature."""
    target_interval: Interval = 1
    """Critic updates per update of the target critics."""
    obs_scale: Positive = 1.0
    """Factor on observations before the networks; raise it for small values, such as positions in metres."""
    normalize_obs: bool = False
    """Normalise observations with running statistics of all collected steps, which are part of the policy."""
    layer_norm: bool = False
    """Apply a layer norm before each activation of the critics, which bounds the values of actions that were never
    taken. It helps if the replay buffer contains demonstrations."""
    action_noise: ActionNoise = "white"
    """Noise of exploring actions: independent at each step (white), or correlated over up to 128 steps (pink), which
    explores farther where rewards are rare. The distribution of a single action is the same."""
    max_grad_norm: Positive | None = None
    """Largest 2-norm of the gradients of the critics, and of the actor with the temperature; larger gradients are
    clipped, None clips nothing."""
    compile: bool = False
    """Compile the losses with torch.compile; on CUDA also random numbers and optimiser steps, for CUDA graphs."""
    fused: bool = True
    """Compute actions and gradients in compiled functions, several times as fast as PyTorch for narrow layers. Used on
    a CPU in fp32 if no hidden layer has more than 512 units, or 256 with several threads, and observations need no
    encoder."""

    @property
    def can_be_fused(self) -> bool:
        """Whether these settings allow `FusedSAC`, which computes actions and gradients in compiled functions."""
        return self.fused and not self.compile

    @property
    def update_period(self) -> int:
        """Number of updates (calls of `update`) after which the sequence of updated networks repeats."""
        return math.lcm(self.policy_interval, self.target_interval)


@dataclass(frozen=True)
@check_ranges
class TD3Config:
    actor_lr: LearningRate = 3e-4
    """Adam learning rate of the actor."""
    critic_lr: LearningRate = 3e-4
    """Adam learning rate of the critics."""
    gamma: Share = 0.99
    """Discount per step."""
    tau: PositiveShare = 0.005
    """Share of the online networks in the target networks at each of their updates."""
    hidden: Widths = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    policy_interval: Interval = 2
    """Critic updates per update of the actor and the target networks."""
    exploration_noise: NoiseScale = 0.1
    """Standard deviation of the exploration noise, in units of half the action range."""
    target_noise: NoiseScale = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: NoiseScale = 0.5
    """Largest absolute noise on the target policy's actions."""
    action_noise: ActionNoise = "white"
    """Noise of exploring actions: independent at each step (white), or correlated over up to 128 steps (pink), which
    explores farther where rewards are rare. The distribution of a single action is the same."""
    normalize_obs: bool = False
    """Normalise observations with running statistics of all collected steps, which are part of the policy."""
    compile: bool = False
    """Compile the losses with torch.compile."""
    fused: bool = True
    """Compute actions and gradients in compiled functions, several times as fast as PyTorch for narrow layers. Used on
    a CPU in fp32 if no hidden layer has more than 512 units, or 256 with several threads, and observations need no
    encoder."""

    @property
    def can_be_fused(self) -> bool:
        """Whether these settings allow `FusedTD3`, which computes actions and gradients in compiled functions."""
        return self.fused and not self.compile

    @property
    def update_period(self) -> int:
        """Number of updates (calls of `update`) after which the sequence of updated networks repeats."""
        return self.policy_interval


@dataclass(frozen=True)
@check_ranges
class FastTD3Config:
    actor_lr: LearningRate = 3e-4
    """AdamW learning rate of the actor."""
    critic_lr: LearningRate = 3e-4
    """AdamW learning rate of the critics."""
    weight_decay: WeightDecay = 0.0
    """Weight decay of AdamW; the authors use 0.1 for humanoids."""
    gamma: Annotated[float, Range(above=0, below=1)] = 0.99
    """Discount per step."""
    tau: PositiveShare = 0.05
    """Share of the online networks in the target networks at each of their updates."""
    hidden: Widths = (256, 256)
    """Widths of the actor's hidden layers."""
    critic_hidden: Widths = (256, 256)
    """Widths of the critics' hidden layers."""
    atoms: Annotated[int, Range(at_least=2, at_most=10_000)] = 101
    """Values whose probabilities the critics learn."""
    value_limit: NonNegative = 0.0
    """Largest absolute value of the atoms, in units of the rewards that the critics receive; 0 is 2 / (1 - gamma)."""
    normalize_obs: bool = True
    """Normalise observations with running statistics, which are part of the policy."""
    normalize_reward: bool = True
    """Divide rewards by their root mean square in all batches, so that `value_limit` suits rewards of any size."""
    policy_interval: Interval = 2
    """Critic updates per update of the actor."""
    min_noise: NoiseScale = 0.05
    """Smallest standard deviation of an environment's exploration noise, in units of half the action range."""
    max_noise: NoiseScale = 0.4
    """Largest standard deviation; the environments are spread evenly over the range."""
    target_noise: NoiseScale = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: NoiseScale = 0.5
    """Largest absolute noise on the target policy's actions."""
    compile: bool = False
    """Compile the losses with torch.compile."""

    def __post_init__(self) -> None:
        if self.min_noise > self.max_noise:
            raise ConfigError(
                f"fast_td3.min_noise={self.min_noise:g} is above fast_td3.max_noise={self.max_noise:g}. Write "
                f"fast_td3.min_noise=0.05 and max_noise=0.4."
            )

    @property
    def update_period(self) -> int:
        """Number of updates in one cycle; every cycle updates the same networks in the same order."""
        return self.policy_interval


@dataclass(frozen=True)
@check_ranges
class DQNConfig:
    lr: LearningRate = 5e-4
    """Adam learning rate."""
    gamma: Share = 0.99
    """Discount per step."""
    tau: PositiveShare = 0.005
    """Share of the online network in the target network at each of its updates; 1 copies the network."""
    target_interval: Interval = 1
    """Updates of the network per update of the target network."""
    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the hidden layers."""
    double: bool = True
    """Choose the next action by the online network and evaluate it by the target network (double Q-learning)."""
    dueling: bool = False
    """Estimate the value of the state and the advantages of the actions separately."""
    quantiles: Annotated[int, Range(at_least=0, at_most=10_000)] = 0
    """Quantiles of the return per action (quantile regression, QR-DQN), for example 50; 0 learns the mean only."""
    huber_delta: Positive = 1.0
    """Error above which the loss is linear instead of quadratic (Huber loss)."""
    max_grad_norm: Positive | None = 10.0
    """Largest 2-norm of the gradients; larger gradients are clipped, None clips nothing."""
    epsilon_start: Share = 1.0
    """Initial probability of a random action."""
    epsilon_end: Share = 0.05
    """Probability of a random action after `epsilon_steps`."""
    epsilon_steps: PositiveCount = 10_000
    """Environment steps, over all ranks, over which the probability falls linearly."""
    normalize_obs: bool = False
    """Normalise observations with running statistics of all collected steps, which are part of the policy."""
    compile: bool = False
    """Compile the loss with torch.compile."""
    fused: bool = True
    """Compute values and gradients in compiled functions, several times as fast as PyTorch for narrow layers. Used on
    a CPU in fp32 if no hidden layer has more than 512 units, or 256 with several threads, observations need no encoder,
    and neither dueling nor quantiles is set."""

    def __post_init__(self) -> None:
        if self.epsilon_end > self.epsilon_start:
            raise ConfigError(
                f"dqn.epsilon_end={self.epsilon_end:g} is above dqn.epsilon_start={self.epsilon_start:g}. Write "
                f"dqn.epsilon_start=1 and dqn.epsilon_end=0.05."
            )

    @property
    def can_be_fused(self) -> bool:
        """Whether these settings allow `FusedDQN`, which computes values and gradients in compiled functions."""
        return self.fused and not (self.compile or self.dueling or self.quantiles)

    @property
    def update_period(self) -> int:
        """Number of updates in one cycle; every cycle updates the same networks in the same order."""
        return self.target_interval


@dataclass(frozen=True)
@check_ranges
class PPOConfig:
    lr: LearningRate = 3e-4
    """Adam learning rate."""
    clip: Annotated[float, Range(above=0, at_most=1)] = 0.2
    """Range of the probability ratio, 1 - clip to 1 + clip."""
    value_coef: Coefficient = 0.5
    """Weight of the value loss."""
    entropy_coef: Coefficient = 0.01
    """Weight of the entropy bonus."""
    entropy_end: Coefficient | None = None
    """Weight of the entropy bonus at the end of the budget, to which it changes linearly; None keeps it constant."""
    value_clip: Positive | None = None
    """Largest change of a value from that of the rollout; None does not clip values."""
    expert_coef: Coefficient = 0.0
    """Weight of the cross-entropy with expert actions, if the environment provides them (kickstarting, Schmitt et al.
    2018, equation 4, with a deterministic expert)."""
    expert_until: Annotated[float, Range(above=0, at_most=1)] | None = None
    """Share of the budget during which the weight of the expert falls linearly to 0; None keeps it constant."""
    target_kl: Positive | None = None
    """Mini-batches with a KL divergence above 1.5 times this value train the value only; None has no limit. With
    several ranks the mean over all ranks counts, and `compile` and `fused` have no effect."""
    max_grad_norm: Positive = 0.5
    """Largest 2-norm of the gradients; larger gradients are clipped."""
    hidden: Widths = (128, 128)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Activation function between the hidden layers."""
    shared_trunk: bool = True
    """Share one trunk between policy and value; false builds two (a central critic needs this)."""
    gru: WidthOrZero = 0
    """Width of the recurrent layer (GRU) after the trunk; 0 builds none."""
    normalize_obs: bool = False
    """Normalise features with running statistics, which are updated once per rollout."""
    log_std: Annotated[float, Range(at_least=-20, at_most=5)] = 0.0
    """Initial log standard deviation of continuous actions, in units of half their range."""
    action_noise: ActionNoise = "white"
    """Noise of exploring actions: independent at each step (white), or correlated over up to 128 steps (pink), which
    explores farther where rewards are rare. The distribution of a single action is the same."""
    fused: bool = False
    """Compute actions and updates of at most 1,024 rows in one compiled function, which saves the overhead of PyTorch.
    It supports two tanh trunks in fp32 on a CPU, without GRU, image network, central critic, MultiDiscrete actions and
    compile; otherwise it has no effect."""
    compile: bool = False
    """Compile the loss with torch.compile."""

    @property
    def can_be_fused(self) -> bool:
        """Whether `fused` is set and the other settings allow `FusedPPO`, which runs updates in a compiled function."""
        return self.fused and not self.shared_trunk and self.activation == "tanh" and not self.compile


@dataclass(frozen=True)
@check_ranges
class DDPGConfig:
    actor_lr: LearningRate = 1e-4
    """Adam learning rate of the actor."""
    critic_lr: LearningRate = 1e-4
    """Adam learning rate of the critic."""
    gamma: Share = 0.95
    """Discount per step."""
    tau: PositiveShare = 0.001
    """Share of the online networks in the target networks at each update."""
    hidden: Width = 256
    """Width of the two hidden layers."""
    communicate: Communication = "none"
    """Communication between agents: none is DDPG with shared weights, lstm is BiCNet with a bidirectional LSTM."""
    max_grad_norm: Positive = 1.0
    """Largest 2-norm of the gradients; larger gradients are clipped."""
    epsilon: Share = 0.5
    """Initial probability of a random action vector."""
    epsilon_decay: PositiveShare = 0.99998
    """Factor on epsilon per environment step; a step of N environments counts N."""
    logit_penalty: Coefficient = 1e-3
    """Weight of the mean squared logit in the actor's loss; it prevents saturation of the softmax."""
    compile: bool = False
    """Compile the losses with torch.compile."""
