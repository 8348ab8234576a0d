"""DQN in one file, as in CleanRL: all in one loop, vector environments, TensorBoard, a replay buffer in numpy.

powerband needs no change in it:

    powerband profile seconds=10 -- python examples/attach/cleanrl_style.py --total-timesteps 100000
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.tensorboard import SummaryWriter


class QNetwork(nn.Module):
    def __init__(self, observation: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(observation, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=2)
    parser.add_argument("--vectorization", default="sync", choices=["sync", "async"])
    parser.add_argument("--total-timesteps", type=int, default=20_000)
    parser.add_argument("--learning-starts", type=int, default=200)
    parser.add_argument("--train-frequency", type=int, default=4)
    parser.add_argument("--target-network-frequency", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--buffer-size", type=int, default=10_000)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--log-dir", default="")
    parser.add_argument("--outcome", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    writer = SummaryWriter(args.log_dir) if args.log_dir else None

    envs = gym.make_vec(args.env_id, num_envs=args.num_envs, vectorization_mode=args.vectorization)
    shape, actions = envs.single_observation_space.shape, int(envs.single_action_space.n)
    q_network, target_network = QNetwork(shape[0], actions), QNetwork(shape[0], actions)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = optim.Adam(q_network.parameters(), lr=args.learning_rate)

    rows = {"obs": shape, "next_obs": shape, "actions": (), "rewards": (), "dones": ()}
    buffer = {name: np.zeros((args.buffer_size, *size), np.float32) for name, size in rows.items()}
    stored, loss = 0, torch.zeros(())

    obs, _ = envs.reset(seed=args.seed)
    start_time, start_cpu = time.time(), time.process_time()
    for step in range(0, args.total_timesteps, args.num_envs):
        epsilon = max(0.05, 1.0 - step / (0.5 * args.total_timesteps))
        if random.random() < epsilon:
            action = np.random.randint(actions, size=args.num_envs)
        else:
            with torch.no_grad():
                action = q_network(torch.as_tensor(obs, dtype=torch.float32)).argmax(dim=1).numpy()
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        at = np.arange(stored, stored + args.num_envs) % args.buffer_size
        for name, value in zip(rows, (obs, next_obs, action, reward, terminated), strict=True):
            buffer[name][at] = value
        stored += args.num_envs
        obs = next_obs

        if step > args.learning_starts and step // args.num_envs % args.train_frequency == 0:
            index = np.random.randint(min(stored, args.buffer_size), size=args.batch_size)
            data = {name: torch.from_numpy(values[index]) for name, values in buffer.items()}
            with torch.no_grad():
                target_max = target_network(data["next_obs"]).max(dim=1).values
                target = data["rewards"] + 0.99 * target_max * (1 - data["dones"])
            values = q_network(data["obs"]).gather(1, data["actions"].long()[:, None]).squeeze(1)
            loss = F.mse_loss(values, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.target_network_frequency < args.num_envs * args.train_frequency:
                target_network.load_state_dict(q_network.state_dict())
        if step % 1000 < args.num_envs:
            rate = step / (time.time() - start_time)
            if writer is not None:
                writer.add_scalar("charts/SPS", rate, step)
                writer.add_scalar("losses/td_loss", loss.item(), step)
            print(f"step {step}: loss {loss.item():.9f}", flush=True)
    envs.close()
    print(f"rate {args.total_timesteps / (time.time() - start_time):.1f}")
    if args.outcome:  # for comparisons: a digest of the parameters, and the processor seconds of the loop
        weights = b"".join(parameter.detach().numpy().tobytes() for parameter in q_network.parameters())
        print(f"OUTCOME {hashlib.sha256(weights).hexdigest()[:32]} {time.process_time() - start_cpu:.6f}")
