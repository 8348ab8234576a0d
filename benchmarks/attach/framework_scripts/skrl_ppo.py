"""skrl: PPO with its sequential trainer."""

import sys

import gymnasium
import torch
from outcome import Outcome
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

steps = int(sys.argv[1])
set_seed(3)
env = wrap_env(gymnasium.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync"))


class Policy(GaussianMixin, Model):
    def __init__(self) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        GaussianMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        DeterministicMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


models = {"policy": Policy(), "value": Value()}
cfg = PPO_CFG(rollouts=64, learning_epochs=4, mini_batches=2)
cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
agent = PPO(
    models=models, memory=RandomMemory(memory_size=64, num_envs=2, device=env.device), cfg=cfg,
    observation_space=env.observation_space, action_space=env.action_space, device=env.device,
)  # fmt: skip
trainer = SequentialTrainer(
    cfg={"timesteps": steps, "headless": True, "disable_progressbar": True}, env=env, agents=agent
)
outcome = Outcome()
trainer.train()
outcome.show([each for model in models.values() for each in model.parameters()])
