"""rsl_rl: PPO with its runner, on a batched environment such as Isaac's: pendulums as one tensor on the CPU."""

import sys

import torch
from outcome import Outcome
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

iterations = int(sys.argv[1])
torch.manual_seed(3)


class Pendulums(VecEnv):
    """Pendulums that are swung up, with the constants of Gymnasium's Pendulum-v1."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, 200
        self.device, self.cfg = "cpu", {}
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.angle, self.speed = torch.zeros(num_envs), torch.zeros(num_envs)
        self._start(torch.ones(num_envs, dtype=torch.bool))

    def _start(self, rows: torch.Tensor) -> None:
        count = int(rows.sum())
        self.angle[rows] = (2 * torch.rand(count) - 1) * torch.pi
        self.speed[rows] = 2 * torch.rand(count) - 1
        self.episode_length_buf[rows] = 0

    def get_observations(self) -> TensorDict:
        policy = torch.stack([self.angle.cos(), self.angle.sin(), self.speed], dim=1)
        return TensorDict({"policy": policy}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        torque = 2 * actions[:, 0].clamp(-1, 1)
        angle = torch.remainder(self.angle + torch.pi, 2 * torch.pi) - torch.pi
        reward = -(angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        self.speed = (self.speed + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self.angle = self.angle + self.speed * 0.05
        self.episode_length_buf += 1
        dones = self.episode_length_buf >= self.max_episode_length
        self._start(dones)
        return self.get_observations(), reward, dones, {"time_outs": dones}


layers = {"class_name": "rsl_rl.models:MLPModel", "hidden_dims": [64, 64], "activation": "elu"}
runner = OnPolicyRunner(
    Pendulums(64),
    {
        "num_steps_per_env": 24,
        "save_interval": 1000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**layers, "distribution_cfg": {"class_name": "rsl_rl.modules.distribution:GaussianDistribution"}},
        "critic": dict(layers),
        "algorithm": {"class_name": "rsl_rl.algorithms:PPO"},
    },
)
outcome = Outcome()
runner.learn(iterations)
outcome.show([*runner.alg.actor.parameters(), *runner.alg.critic.parameters()])
