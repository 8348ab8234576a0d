"""Updates per CPU-second: powerband's DDPG and SAC against the same updates in plain PyTorch and in Stable-Baselines3.

Both sides sample their batches, run in one process on one thread, and take turns; a figure is the median of the turns.
CPU time is what is compared: wall time on a shared machine is not.

    python benchmarks/updates.py --json benchmarks/results/updates.json
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from powerband.algos.ddpg import DDPG, DDPGConfig
from powerband.algos.ppo import PPO, PPOConfig
from powerband.algos.sac import SAC, SACConfig
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.replay import Replay
from powerband.data.types import EnvSpec, TensorSpec

ROWS = 20_000
Update = Callable[[], object]


class PlainDDPG:
    """The update as scripts write it: a list of tuples, two optimisers, gradients of everything, a loop for Polyak."""

    def __init__(self, inputs: int, agents: int, batch: int):
        def mlp(i: int, o: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(i, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, o))

        self.batch = batch
        self.actor, self.critic = mlp(inputs, 4), mlp(inputs + 4, 1)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=1e-4)
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), lr=1e-4)
        draw = np.random.default_rng(0)
        self.buffer = [
            (
                draw.standard_normal((agents, inputs), dtype=np.float32),
                draw.random((agents, 4), dtype=np.float32),
                draw.standard_normal(agents, dtype=np.float32),
                draw.standard_normal((agents, inputs), dtype=np.float32),
                False,
            )
            for _ in range(ROWS)
        ]

    def __call__(self) -> None:
        columns = zip(*random.sample(self.buffer, self.batch), strict=True)
        obs, action, reward, next_obs, terminated = (
            torch.as_tensor(np.array(column), dtype=torch.float32) for column in columns
        )
        with torch.no_grad():
            next_action = F.softmax(self.target_actor(next_obs), -1)
            next_q = self.target_critic(torch.cat([next_obs, next_action], -1)).squeeze(-1)
            target = reward + 0.95 * (1 - terminated.unsqueeze(-1)) * next_q
        critic_loss = F.mse_loss(self.critic(torch.cat([obs, action], -1)).squeeze(-1), target)
        self.critic_adam.zero_grad()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)
        self.critic_adam.step()
        actor_loss = -self.critic(torch.cat([obs, F.softmax(self.actor(obs), -1)], -1)).mean()
        self.actor_adam.zero_grad()
        actor_loss.backward()
        nn.utils.clip_grad_norm_(self.actor.parameters(), 1.0)
        self.actor_adam.step()
        for online, target in ((self.actor, self.target_actor), (self.critic, self.target_critic)):
            for source, parameter in zip(online.parameters(), target.parameters(), strict=True):
                parameter.data.copy_(parameter.data * 0.999 + source.data * 0.001)
        critic_loss.item(), actor_loss.item()


def our_ddpg(inputs: int, agents: int, batch: int, precision: str, compile: bool = False) -> Update:
    spec = EnvSpec(TensorSpec((agents, inputs)), TensorSpec((agents,), torch.int64), num_actions=4, num_agents=agents)
    source = NoiseSource(0)
    learner = DDPG(spec, DDPGConfig(compile=compile, logit_penalty=0.0), "cpu", Precision(precision), source)
    fields = {
        "obs": spec.obs,
        "next_obs": spec.obs,
        "action": spec.action,
        "action_probs": TensorSpec((agents, 4)),
        "reward": TensorSpec((agents,)),
        "terminated": TensorSpec((), torch.bool),
    }
    replay = Replay(ROWS, ROWS, "cpu", fields)
    replay.add(
        {
            "obs": torch.randn(ROWS, agents, inputs),
            "next_obs": torch.randn(ROWS, agents, inputs),
            "action": torch.randint(4, (ROWS, agents)),
            "action_probs": torch.rand(ROWS, agents, 4),
            "reward": torch.randn(ROWS, agents),
            "terminated": torch.zeros(ROWS, dtype=torch.bool),
        }
    )
    noise = source("replay", batch)
    return lambda: learner.update(replay.sample(batch, noise))


def our_sac(inputs: int, dim: int, batch: int, precision: str, compile: bool = False) -> Update:
    spec = EnvSpec(TensorSpec((inputs,)), TensorSpec((dim,)), low=-torch.ones(dim), high=torch.ones(dim))
    source = NoiseSource(0)
    learner = SAC(spec, SACConfig(compile=compile), "cpu", Precision(precision), source)
    fields = {
        "obs": spec.obs,
        "next_obs": spec.obs,
        "action": spec.action,
        "reward": TensorSpec(()),
        "terminated": TensorSpec((), torch.bool),
    }
    replay = Replay(ROWS, ROWS, "cpu", fields)
    replay.add(
        {
            "obs": torch.randn(ROWS, inputs),
            "next_obs": torch.randn(ROWS, inputs),
            "action": torch.rand(ROWS, dim) * 2 - 1,
            "reward": torch.randn(ROWS),
            "terminated": torch.zeros(ROWS, dtype=torch.bool),
        }
    )
    noise = source("replay", batch)
    return lambda: learner.update(replay.sample(batch, noise))


def sb3_sac(inputs: int, dim: int, batch: int) -> Update:
    """Stable-Baselines3's own train(), which samples its own buffer."""
    import gymnasium
    from stable_baselines3 import SAC as Peer
    from stable_baselines3.common.logger import Logger

    class Still(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (inputs,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (dim,), np.float32)

        def reset(self, *, seed=None, options=None):
            return np.zeros(inputs, np.float32), {}

    peer = Peer("MlpPolicy", Still(), buffer_size=ROWS, device="cpu", policy_kwargs={"net_arch": [256, 256]})
    peer.set_logger(Logger(None, []))
    draw = np.random.default_rng(0)
    for _ in range(ROWS):
        obs, next_obs = draw.standard_normal((2, 1, inputs), dtype=np.float32)
        action = draw.uniform(-1, 1, (1, dim)).astype(np.float32)
        peer.replay_buffer.add(obs, next_obs, action, draw.standard_normal(1), np.zeros(1), [{}])
    return lambda: peer.train(gradient_steps=1, batch_size=batch)


def our_ppo(batch: int, precision: str) -> Update:
    spec = EnvSpec(TensorSpec((100,)), TensorSpec((), torch.int64), num_actions=3)
    learner = PPO(spec, PPOConfig(), "cpu", Precision(precision), NoiseSource(0))
    obs = torch.randn(batch, 100)
    action, extras, _ = learner.act(obs, None, True)
    part = {"obs": obs, "action": action, **extras, "advantages": torch.randn(batch), "returns": torch.randn(batch)}
    return lambda: learner.update(part)


def measure(sides: dict[str, Update], turns: int, updates: int) -> dict[str, float]:
    """CPU milliseconds an update of each side: median over turns, the sides taking turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, update in sides.items():
            start = time.process_time()
            for _ in range(updates):
                update()
            if turn:  # turn 0 warms up
                times[name].append((time.process_time() - start) / updates * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--turns", type=int, default=9, help="turns of each side")
    parser.add_argument("--updates", type=int, default=20, help="updates in a turn")
    parser.add_argument("--compile", action="store_true", help="also time torch.compile of our losses")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)

    cases: dict[str, tuple[str, dict[str, Update]]] = {
        "ddpg, 512 x 3 agents, obs 26": (
            "plain",
            {
                "plain": PlainDDPG(26, 3, 512),
                "fp32": our_ddpg(26, 3, 512, "fp32"),
                "bf16": our_ddpg(26, 3, 512, "bf16"),
            },
        )
    }
    if arguments.compile:
        cases["ddpg, 512 x 3 agents, obs 26"][1]["bf16 compiled"] = our_ddpg(26, 3, 512, "bf16", compile=True)
    for inputs, dim in ((3, 1), (39, 4)):
        sides = {"fp32": our_sac(inputs, dim, 256, "fp32"), "bf16": our_sac(inputs, dim, 256, "bf16")}
        if arguments.compile:
            sides["bf16 compiled"] = our_sac(inputs, dim, 256, "bf16", compile=True)
        try:
            sides = {"sb3": sb3_sac(inputs, dim, 256), **sides}
        except ImportError:
            print("stable_baselines3 is not installed: pip install 'powerband[peers]' to compare with it")
        cases[f"sac, 256, obs {inputs}, action {dim}"] = ("sb3" if "sb3" in sides else "fp32", sides)
    cases["ppo, 4096, obs 100, 128-128, 3 actions"] = (
        "fp32",
        {"fp32": our_ppo(4096, "fp32"), "bf16": our_ppo(4096, "bf16")},
    )

    result = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__, "threads": 1}
    result["cases"] = {}
    for name, (reference, sides) in cases.items():
        times = measure(sides, arguments.turns, arguments.updates)
        result["cases"][name] = {"cpu_ms": times, "speedup": {s: times[reference] / t for s, t in times.items()}}
        print(name)
        for side, value in times.items():
            print(f"  {side:14s} {value:8.2f} ms   {1e3 / value:7.0f} updates/CPU-s   {times[reference] / value:5.2f}x")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
