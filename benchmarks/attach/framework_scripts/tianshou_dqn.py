"""Tianshou: collector, vector environment and DQN from its low-level interface."""

import sys

import gymnasium
import numpy as np
import torch
from outcome import Outcome
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net

steps = int(sys.argv[1])
np.random.seed(3)
torch.manual_seed(3)
env = gymnasium.make("CartPole-v1")
envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(2)])
envs.seed(3)
net = Net(state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=[128, 128])
policy = DiscreteQLearningPolicy(
    model=net, action_space=env.action_space, observation_space=env.observation_space, eps_training=0.1
)
algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.9, target_update_freq=100)
collector = Collector[CollectStats](algorithm, envs, VectorReplayBuffer(20_000, 2), exploration_noise=True)
collector.reset()
collector.collect(n_step=128)
outcome = Outcome()
for _ in range(steps // 8):
    collector.collect(n_step=8)
    with torch.enable_grad():
        algorithm.policy.train()
        with torch.set_grad_enabled(True):
            from tianshou.utils.torch_utils import policy_within_training_step

            with policy_within_training_step(algorithm.policy):
                algorithm.update(sample_size=64, buffer=collector.buffer)
outcome.show(net.parameters())
