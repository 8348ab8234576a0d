"""Double DQN in one file, as in CleanRL, on a pendulum with nine torques."""

import json
import os
import random

import gymnasium as gym
import numpy as np
import parts
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.tensorboard import SummaryWriter


class QNetwork(nn.Module):
    def __init__(self, observation: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(observation, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, actions)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def evaluate(network: QNetwork, env: gym.Env, episodes: int) -> float:
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        done, total = False, 0.0
        while not done:
            with torch.no_grad():
                action = network(torch.as_tensor(obs, dtype=torch.float32)).argmax().numpy()
            obs, reward, terminated, truncated, _ = env.step(action)
            done, total = terminated or truncated, total + float(reward)
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = parts.parser()
    parser.add_argument("--train-frequency", type=int, default=1, help="environment steps between updates")
    parser.add_argument("--updates", type=int, default=1, help="updates at a time")
    args = parser.parse_args()
    parts.prepare(args)
    random.seed(3)
    writer = SummaryWriter("runs")
    vector = gym.vector.AsyncVectorEnv if args.num_envs > 1 else gym.vector.SyncVectorEnv
    envs = vector(parts.makers(args, discrete=True))
    eval_env = parts.Torques(gym.make("Pendulum-v1"))
    shape, actions = envs.single_observation_space.shape, int(envs.single_action_space.n)
    q_network, target_network = QNetwork(shape[0], actions), QNetwork(shape[0], actions)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = optim.Adam(q_network.parameters(), lr=5e-4)
    size, stored = 50_000, 0
    rows = {"obs": shape, "next_obs": shape, "actions": (), "rewards": (), "dones": ()}
    buffer = {name: np.zeros((size, *each), np.float32) for name, each in rows.items()}
    losses, update = [0.0], 0

    obs, _ = envs.reset(seed=3)
    for step in range(10_000_000):
        if random.random() < 0.1:
            action = np.random.randint(actions, size=args.num_envs)
        else:
            with torch.no_grad():
                action = q_network(torch.as_tensor(obs, dtype=torch.float32)).argmax(dim=1).numpy()
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        at = np.arange(stored, stored + args.num_envs) % size
        for name, value in zip(rows, (obs, next_obs, action, reward, terminated), strict=True):
            buffer[name][at] = value
        stored += args.num_envs
        obs = next_obs
        if step < 100 or step % args.train_frequency:
            continue

        for _ in range(args.updates):
            update += 1
            index = np.random.randint(min(stored, size), size=args.batch_size)
            data = {name: torch.from_numpy(values[index]) for name, values in buffer.items()}
            with torch.no_grad():
                best = q_network(data["next_obs"]).argmax(dim=1, keepdim=True)
                future = target_network(data["next_obs"]).gather(1, best).squeeze(1)
                target = data["rewards"] + 0.99 * future * (1 - data["dones"])
            values = q_network(data["obs"]).gather(1, data["actions"].long()[:, None]).squeeze(1)
            loss = F.mse_loss(values, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.reads:
                writer_norms = parts.parameter_norms(q_network.parameters(), args.reads)
            if update % 250 == 0:
                target_network.load_state_dict(q_network.state_dict())
            if args.figure_every and update % args.figure_every == 0:
                losses.append(loss.item())
                writer.add_scalar("losses/td_loss", losses[-1], step)
                writer.add_figure("losses/curve", parts.figure_of(losses), step)
            if args.eval_every and update % args.eval_every == 0:
                writer.add_scalar("charts/eval_return", evaluate(q_network, eval_env, 3), step)
            if args.save_every and update % args.save_every == 0:
                state = {"network": q_network.state_dict(), "optimizer": optimizer.state_dict(), "buffer": buffer}
                with open("checkpoint.pt", "wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
                with open("checkpoint.json", "w") as text:
                    json.dump({"step": step}, text)
