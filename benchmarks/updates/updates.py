"""CPU time per update of DDPG, SAC and PPO, compared with plain PyTorch and Stable-Baselines3.

All implementations sample their batches and run in one process on one thread. They are interleaved, and each result is
the median over rounds. The benchmark measures CPU time, because wall time on a shared machine is not reliable. SAC runs
in PyTorch here (``sac.fused=false``); `sac_widths.py` measures its compiled functions.

    python benchmarks/updates/updates.py --json benchmarks/results/updates/updates.json
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
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.algos.ddpg import DDPG
from powerband.algos.ppo import PPO
from powerband.algos.sac import SAC
from powerband.algos.settings import DDPGConfig, PPOConfig, SACConfig
from powerband.core.optim.precision import PrecisionName
from powerband.core.rank_context import RankContext
from powerband.data.replay import Replay
from powerband.data.types import EnvSpec, TensorSpec
from powerband.recipes.snakes.nets.team import TeamMLP

ROWS = 20_000
"""Transitions in the replay buffer."""
Update = Callable[[], object]
"""Function that samples a batch and makes one update."""


class PlainDDPG:
    """DDPG as in a plain script: a list as replay buffer, two optimisers, and a loop for Polyak averaging."""

    def __init__(self, inputs: int, agents: int, batch: int):
        def mlp(i: int, o: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(i, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, o))

        self.batch = batch
        self.actor, self.critic = mlp(inputs, 4), mlp(inputs + 4, 1)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=1e-4)
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), lr=1e-4)
        generator = np.random.default_rng(0)
        self.buffer = [
            (
                generator.standard_normal((agents, inputs), dtype=np.float32),
                generator.random((agents, 4), dtype=np.float32),
                generator.standard_normal(agents, dtype=np.float32),
                generator.standard_normal((agents, inputs), dtype=np.float32),
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


def powerband_ddpg(
    inputs: int, agents: int, batch: int, precision: PrecisionName, compile_losses: bool = False
) -> Update:
    """Returns the update of powerband's DDPG for observations of length `inputs`."""
    spec = EnvSpec(TensorSpec((agents, inputs)), TensorSpec((agents,), torch.int64), num_actions=4, num_agents=agents)
    context = RankContext.single(precision=precision)
    settings = DDPGConfig(compile=compile_losses, logit_penalty=0.0)
    learner = DDPG(spec, settings, context, lambda inputs, outputs: TeamMLP(inputs, settings.hidden, outputs, "none"))
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
    noise = context.noise("replay", batch)
    return lambda: learner.update(replay.sample(batch, noise))


def powerband_sac(
    inputs: int, actions: int, batch: int, precision: PrecisionName, compile_losses: bool = False
) -> Update:
    """Returns the update of powerband's SAC for observations of length `inputs` and actions of length `actions`."""
    return sac_on_device(
        inputs, actions, batch, SACConfig(compile=compile_losses, fused=False), RankContext.single("cpu", precision)
    )[0]


def sac_on_device(
    inputs: int, actions: int, batch: int, settings: SACConfig, context: RankContext
) -> tuple[Callable[[], dict[str, Tensor]], SAC]:
    """Returns the update of powerband's SAC with its sampling on the device of `context`, and the learner."""
    spec = EnvSpec(TensorSpec((inputs,)), TensorSpec((actions,)), low=-torch.ones(actions), high=torch.ones(actions))
    learner = SAC(spec, settings, context)
    fields = {
        "obs": spec.obs,
        "next_obs": spec.obs,
        "action": spec.action,
        "reward": TensorSpec(()),
        "terminated": TensorSpec((), torch.bool),
    }
    stored = max(ROWS, batch)
    replay = Replay(stored, stored, context.device, fields)
    rows = {
        "obs": torch.randn(stored, inputs),
        "next_obs": torch.randn(stored, inputs),
        "action": torch.rand(stored, actions) * 2 - 1,
        "reward": torch.randn(stored),
        "terminated": torch.zeros(stored, dtype=torch.bool),
    }
    replay.add({name: column.to(context.device) for name, column in rows.items()})
    noise = context.noise("replay", batch)
    return lambda: learner.update(replay.sample(batch, noise)), learner


def sb3_sac(inputs: int, actions: int, batch: int, width: int = 256) -> Update:
    """Returns ``train()`` of Stable-Baselines3's SAC, which samples from its replay buffer."""
    import gymnasium
    from stable_baselines3 import SAC as SB3SAC
    from stable_baselines3.common.logger import Logger

    class StaticEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (inputs,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (actions,), np.float32)

        def reset(self, *, seed=None, options=None):
            return np.zeros(inputs, np.float32), {}

    networks = {"net_arch": [width, width]}
    model = SB3SAC("MlpPolicy", StaticEnv(), buffer_size=ROWS, device="cpu", policy_kwargs=networks)
    model.set_logger(Logger(None, []))
    generator = np.random.default_rng(0)
    for _ in range(ROWS):
        obs, next_obs = generator.standard_normal((2, 1, inputs), dtype=np.float32)
        action = generator.uniform(-1, 1, (1, actions)).astype(np.float32)
        model.replay_buffer.add(obs, next_obs, action, generator.standard_normal(1), np.zeros(1), [{}])
    return lambda: model.train(gradient_steps=1, batch_size=batch)


def powerband_ppo(batch: int, precision: PrecisionName) -> Update:
    """Returns the update of powerband's PPO on one fixed mini-batch of `batch` rows."""
    spec = EnvSpec(TensorSpec((100,)), TensorSpec((), torch.int64), num_actions=3)
    learner = PPO(spec, PPOConfig(), RankContext.single(precision=precision))
    obs = torch.randn(batch, 100)
    action, extras, _ = learner.act(obs, None, True)
    minibatch = {
        "obs": obs,
        "action": action,
        **extras,
        "advantages": torch.randn(batch),
        "returns": torch.randn(batch),
    }
    return lambda: learner.update(minibatch)


def measure(
    implementations: dict[str, Update], rounds: int, updates: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Returns the milliseconds per update of each implementation by `clock`, median over interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in implementations}
    for index in range(rounds + 1):
        for name, update in implementations.items():
            start = clock()
            for _ in range(updates):
                update()
            if index:  # round 0 warms up
                times[name].append((clock() - start) / updates * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds")
    parser.add_argument("--updates", type=int, default=20, help="updates per round")
    parser.add_argument("--compile", action="store_true", help="also measure powerband with compiled losses")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)

    cases: dict[str, tuple[str, dict[str, Update]]] = {
        "ddpg, 512 x 3 agents, obs 26": (
            "plain",
            {
                "plain": PlainDDPG(26, 3, 512),
                "fp32": powerband_ddpg(26, 3, 512, "fp32"),
                "bf16": powerband_ddpg(26, 3, 512, "bf16"),
            },
        )
    }
    if arguments.compile:
        cases["ddpg, 512 x 3 agents, obs 26"][1]["bf16 compiled"] = powerband_ddpg(
            26, 3, 512, "bf16", compile_losses=True
        )
    for inputs, actions in ((3, 1), (39, 4)):
        updates = {
            "fp32": powerband_sac(inputs, actions, 256, "fp32"),
            "bf16": powerband_sac(inputs, actions, 256, "bf16"),
        }
        if arguments.compile:
            updates["bf16 compiled"] = powerband_sac(inputs, actions, 256, "bf16", compile_losses=True)
        try:
            updates = {"sb3": sb3_sac(inputs, actions, 256), **updates}
        except ImportError:
            print("stable_baselines3 is not installed. Install it with pip install 'powerband[peers]' to measure it.")
        cases[f"sac, 256, obs {inputs}, action {actions}"] = ("sb3" if "sb3" in updates else "fp32", updates)
    cases["ppo, 4096, obs 100, 128-128, 3 actions"] = (
        "fp32",
        {"fp32": powerband_ppo(4096, "fp32"), "bf16": powerband_ppo(4096, "bf16")},
    )

    results: dict[str, Any] = {}
    for name, (baseline, implementations) in cases.items():
        times = measure(implementations, arguments.rounds, arguments.updates)
        speedups = {each: times[baseline] / milliseconds for each, milliseconds in times.items()}
        results[name] = {"cpu_ms": times, "speedup": speedups}
        print(f"{name} (speedup compared with {baseline})")
        for each, milliseconds in times.items():
            rate = 1e3 / milliseconds
            print(f"  {each:14s} {milliseconds:8.2f} ms   {rate:7.0f} updates/CPU-s   {speedups[each]:5.2f}x")
    machine = platform.processor() or platform.machine()
    result = {"machine": machine, "torch": torch.__version__, "threads": 1, "cases": results}
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
