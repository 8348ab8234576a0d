"""rsl_rl: PPO with its runner, on a batched simulator: pendulums as one tensor on the CPU."""

import time

import parts
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict


class Pendulums(VecEnv):
    """Pendulums that are swung up, with the constants of Gymnasium's Pendulum-v1."""

    def __init__(self, num_envs: int, step_ms: float) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, 200
        self.device, self.cfg, self.step_s = "cpu", {}, step_ms / 1e3
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.angle, self.speed = torch.zeros(num_envs), torch.zeros(num_envs)
        self._start(torch.ones(num_envs, dtype=torch.bool))

    def _start(self, rows: torch.Tensor) -> None:
        self.angle[rows] = ((2 * torch.rand(self.num_envs) - 1) * torch.pi)[rows]
        self.speed[rows] = (2 * torch.rand(self.num_envs) - 1)[rows]
        self.episode_length_buf[rows] = 0

    def get_observations(self) -> TensorDict:
        policy = torch.stack([self.angle.cos(), self.angle.sin(), self.speed], dim=1)
        return TensorDict({"policy": policy}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        if self.step_s:
            time.sleep(self.step_s)
        torque = 2 * actions[:, 0].clamp(-1, 1)
        angle = torch.remainder(self.angle + torch.pi, 2 * torch.pi) - torch.pi
        reward = -(angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        self.speed = (self.speed + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self.angle = self.angle + self.speed * 0.05
        self.episode_length_buf += 1
        dones = self.episode_length_buf >= self.max_episode_length
        self._start(dones)
        return self.get_observations(), reward, dones, {"time_outs": dones}


if __name__ == "__main__":
    parser = parts.parser(num_envs=64, save_every=1_000_000)
    parser.add_argument("--rollout", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    parts.prepare(args)
    layers = {"class_name": "rsl_rl.models:MLPModel", "hidden_dims": [256, 256], "activation": "elu"}
    gaussian = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution"}
    runner = OnPolicyRunner(
        Pendulums(args.num_envs, args.env_ms),
        {
            "num_steps_per_env": args.rollout,
            "save_interval": args.save_every,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {**layers, "distribution_cfg": gaussian},
            "critic": dict(layers),
            "algorithm": {
                "class_name": "rsl_rl.algorithms:PPO",
                "num_learning_epochs": args.epochs,
                "num_mini_batches": max(1, args.rollout * args.num_envs // args.batch_size),
            },
        },
        log_dir="runs",
    )
    runner.learn(10_000_000)
