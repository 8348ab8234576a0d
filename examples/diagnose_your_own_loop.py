"""Diagnoses training loops outside of powerband: two loops that use only its phase clock.

    python examples/diagnose_your_own_loop.py dqn    # a one-file DQN on CartPole with spans in its loop
    python examples/diagnose_your_own_loop.py sb3    # PPO of Stable-Baselines3, timed by a callback

Each prints the ledger (the wall time divided into accounts), the bottleneck, and a remedy.
"""

from __future__ import annotations

import argparse
import copy

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from powerband import PhaseClock, diagnose
from powerband.tune.diagnose.diagnosis import Diagnosis


def dqn(steps: int, clock: PhaseClock, batch: int = 64, seed: int = 0) -> Diagnosis:
    """Trains Double DQN on CartPole. The lines `with clock(...)` are the only additions for the diagnosis."""
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    env = gym.make("CartPole-v1")
    net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=5e-4)
    size = min(steps, 10_000)
    obs_buffer, next_buffer = np.zeros((size, 4), np.float32), np.zeros((size, 4), np.float32)
    actions, rewards = np.zeros(size, np.int64), np.zeros(size, np.float32)
    terminals = np.zeros(size, np.float32)
    obs, _ = env.reset(seed=seed)

    def update(batch: tuple[torch.Tensor, ...]) -> None:
        s, a, r, s2, d = batch
        with torch.no_grad():
            best = net(s2).argmax(1, keepdim=True)
            y = r + 0.99 * (1 - d) * target(s2).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(net(s).gather(1, a.unsqueeze(1)).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    clock.restart()  # imports and the construction of networks are not training
    for step in range(steps):
        with clock("act"):
            if draw.random() < max(0.05, 1 - step / (0.5 * steps)):
                action = int(draw.integers(2))
            else:
                with torch.no_grad():
                    action = int(net(torch.from_numpy(obs)).argmax())
        with clock("env"):
            next_obs, reward, terminated, truncated, _ = env.step(action)
        with clock("store"):
            row = step % size
            obs_buffer[row], next_buffer[row], actions[row] = obs, next_obs, action
            rewards[row], terminals[row] = reward, terminated
        obs = next_obs
        if terminated or truncated:
            with clock("env"):
                obs, _ = env.reset()
        if step < 4 * batch:
            continue
        with clock("sample"):
            rows = draw.integers(min(step + 1, size), size=batch)
            s, s2, r, d = (torch.from_numpy(b[rows]) for b in (obs_buffer, next_buffer, rewards, terminals))
            a = torch.from_numpy(actions[rows])
        with clock("update"):
            update((s, a, r, s2, d))
            if step % 250 == 0:
                target.load_state_dict(net.state_dict())
    env.close()
    # The update and a batch let the diagnosis also find small batches, .item() in the step, and too many threads.
    return diagnose(clock, update=update, batch=(s, a, r, s2, d))


def sb3(steps: int, clock: PhaseClock) -> Diagnosis:
    """Trains PPO of Stable-Baselines3 with a callback that assigns its parts to accounts."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Accounts(BaseCallback):
        """Wraps the methods that take time when training starts."""

        def _on_training_start(self) -> None:
            model = self.model
            for owner, method, account in (
                (model.env, "step_wait", "env"),
                (model.policy, "forward", "act"),
                (model.rollout_buffer, "add", "store"),
                (model.rollout_buffer, "compute_returns_and_advantage", "returns"),
                (model, "train", "update"),
                (model.logger, "dump", "log"),
            ):
                setattr(owner, method, clock.wrap(account, getattr(owner, method)))
            clock.restart()

        def _on_step(self) -> bool:
            return True

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, batch_size=64, n_epochs=4, seed=0, device="cpu")
    model.learn(steps, callback=Accounts())
    return diagnose(clock)


LOOPS = {"dqn": dqn, "sb3": sb3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--steps", type=int, default=5_000)
    options = parser.parse_args()
    if options.loop == "dqn" and options.steps <= 256:
        parser.error(f"--steps {options.steps}: updates begin after 256 steps. Write --steps 1000 or more.")
    clock = PhaseClock()
    print(LOOPS[options.loop](options.steps, clock))


if __name__ == "__main__":
    main()
