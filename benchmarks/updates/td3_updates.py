"""CPU time per update of TD3 and FastTD3, compared with TD3 of Stable-Baselines3, tianshou and TorchRL.

Every implementation samples its batch from its own replay, updates both critics in every update and actor and targets
in every second one, runs in one process on one thread, and uses Adam. They are interleaved; each result is the median
over rounds. The benchmark measures CPU time, as `updates.py` does. FastTD3 learns distributions with 101 atoms; its
batches usually have 512 rows.

    pip install 'powerband[peers,more-peers]'
    python benchmarks/updates/td3_updates.py --json benchmarks/results/updates/td3_updates.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from powerband.algos.fast_td3 import FastTD3
from powerband.algos.settings import FastTD3Config, TD3Config
from powerband.algos.td3 import TD3
from powerband.core.machine.device import host_facts
from powerband.core.optim.precision import PrecisionName
from powerband.core.rank_context import RankContext
from powerband.data.replay import Replay
from powerband.data.types import EnvSpec, TensorSpec
from updates import ROWS, Update, measure

INPUTS, ACTIONS, LR, TAU = 17, 6, 1e-3, 0.005
"""Sizes of HalfCheetah, learning rate and rate of the target networks."""
OBS = np.random.default_rng(0).standard_normal((ROWS, INPUTS), dtype=np.float32)
BOUNDED = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)
SPACE = gymnasium.spaces.Box(-np.inf, np.inf, (INPUTS,), np.float32)


def layers(inputs: int, outputs: int, width: int, *last: nn.Module) -> nn.Sequential:
    """Returns a network with two hidden layers."""
    hidden = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, outputs), *last)


def powerband_update(width: int, batch: int, precision: PrecisionName = "fp32", fast: bool = False) -> Update:
    """Returns the update of powerband's TD3, or of its FastTD3."""
    bounds = {"low": torch.full((ACTIONS,), -1.0), "high": torch.ones(ACTIONS)}
    spec = EnvSpec(TensorSpec((INPUTS,)), TensorSpec((ACTIONS,)), **bounds)
    context = RankContext.single(precision=precision)
    sizes = (width, width)
    learner = (
        FastTD3(spec, FastTD3Config(hidden=sizes, critic_hidden=sizes), context)
        if fast
        else TD3(spec, TD3Config(hidden=sizes), context)
    )
    fields = {"obs": spec.obs, "next_obs": spec.obs, "action": spec.action, "reward": TensorSpec(())}
    replay = Replay(ROWS, ROWS, "cpu", {**fields, "terminated": TensorSpec((), torch.bool)})
    obs, action = torch.from_numpy(OBS), torch.rand(ROWS, ACTIONS) * 2 - 1
    ends = torch.zeros(ROWS, dtype=torch.bool)
    replay.add({"obs": obs, "next_obs": obs, "action": action, "reward": torch.randn(ROWS), "terminated": ends})
    noise = context.noise("replay", batch)
    return lambda: learner.update(replay.sample(batch, noise))


def sb3_td3(width: int, batch: int) -> Update:
    """Returns ``train()`` of Stable-Baselines3's TD3."""
    from stable_baselines3 import TD3 as SB3TD3
    from stable_baselines3.common.logger import Logger

    class StaticEnv(gymnasium.Env):
        observation_space, action_space = SPACE, BOUNDED

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return np.zeros(INPUTS, np.float32), {}

    policy = {"net_arch": [width, width]}
    model = SB3TD3("MlpPolicy", StaticEnv(), LR, buffer_size=ROWS, device="cpu", policy_kwargs=policy)
    model.set_logger(Logger(None, []))
    for obs in OBS:
        model.replay_buffer.add(obs, obs, BOUNDED.sample(), np.zeros(1), np.zeros(1), [{}])
    return lambda: model.train(gradient_steps=1, batch_size=batch)


def tianshou_td3(width: int, batch: int) -> Update:
    """Returns the update of tianshou's TD3."""
    from tianshou.algorithm import TD3 as TianshouTD3
    from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, ReplayBuffer
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousCritic
    from tianshou.utils.torch_utils import policy_within_training_step

    def critic() -> ContinuousCritic:
        net = Net(state_shape=(INPUTS,), action_shape=(ACTIONS,), hidden_sizes=(width, width), concat=True)
        return ContinuousCritic(preprocess_net=net)

    net = Net(state_shape=(INPUTS,), hidden_sizes=(width, width))
    actor = ContinuousActorDeterministic(preprocess_net=net, action_shape=(ACTIONS,), max_action=1.0)
    policy = ContinuousDeterministicPolicy(actor=actor, action_space=BOUNDED, observation_space=SPACE)
    adam = AdamOptimizerFactory(lr=LR)
    learner = TianshouTD3(
        policy=policy, policy_optim=adam, critic=critic(), critic_optim=adam, critic2=critic(), critic2_optim=adam
    )
    buffer = ReplayBuffer(ROWS)
    for obs in OBS:
        row = {"obs": obs, "act": BOUNDED.sample(), "rew": 0.0, "obs_next": obs, "info": {}}
        buffer.add(Batch(**row, terminated=False, truncated=False))

    def update() -> None:
        with policy_within_training_step(policy):
            learner.update(buffer, batch)

    return update


def torchrl_td3(width: int, batch: int) -> Update:
    """Returns an update as in TorchRL's example of TD3: its loss, two optimisers and soft updates of the targets."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.modules import ValueOperator
    from torchrl.objectives import SoftUpdate, TD3Loss

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers(INPUTS + ACTIONS, 1, width)

        def forward(self, obs: Tensor, action: Tensor) -> Tensor:
            return self.layers(torch.cat([obs, action], -1))

    actor = TensorDictModule(layers(INPUTS, ACTIONS, width, nn.Tanh()), ["observation"], ["action"])
    critic = ValueOperator(Critic(), in_keys=["observation", "action"])
    spec = Bounded(-1.0, 1.0, (ACTIONS,))
    loss_module = TD3Loss(actor, critic, num_qvalue_nets=2, action_spec=spec, loss_function="l2")
    loss_module.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss_module, tau=TAU)
    actor_adam = torch.optim.Adam(loss_module.actor_network_params.flatten_keys().values(), lr=LR)
    critic_adam = torch.optim.Adam(loss_module.qvalue_network_params.flatten_keys().values(), lr=LR)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), batch_size=batch)
    obs, flags = torch.from_numpy(OBS), torch.zeros(ROWS, 1, dtype=torch.bool)
    following = {"observation": obs, "reward": torch.randn(ROWS, 1), "done": flags, "terminated": flags}
    action = torch.rand(ROWS, ACTIONS) * 2 - 1
    buffer.extend(TensorDict({"observation": obs, "action": action, "next": following}, batch_size=[ROWS]))
    number = 0

    def update() -> None:
        nonlocal number
        number += 1
        sampled = buffer.sample()
        loss = loss_module.value_loss(sampled)[0]
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        if number % 2 == 0:
            loss = loss_module.actor_loss(sampled)[0]
            actor_adam.zero_grad()
            loss.backward()
            actor_adam.step()
            target.step()

    return update


PEERS: dict[str, Callable[[int, int], Update]] = {"sb3": sb3_td3, "tianshou": tianshou_td3, "torchrl": torchrl_td3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds")
    parser.add_argument("--updates", type=int, default=20, help="updates per round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for width, batch in ((64, 256), (256, 100), (256, 256), (256, 512)):
        torch.manual_seed(0)
        implementations = {
            "powerband": powerband_update(width, batch),
            "bf16": powerband_update(width, batch, "bf16"),
            "FastTD3": powerband_update(width, batch, fast=True),
        }
        for name, make in PEERS.items():
            try:
                implementations[name] = make(width, batch)
            except ImportError:
                print(f"{name} is not installed. Install it with pip install 'powerband[peers,more-peers]'.")
        case, times = (
            f"2 x {width} hidden, batch {batch}",
            measure(implementations, arguments.rounds, arguments.updates),
        )
        ratios = {name: value / times["powerband"] for name, value in times.items()}
        results[case] = {"cpu_ms": times, "speedup": ratios}
        print(case)
        for name, value in times.items():
            print(f"  {name:10s} {value:8.3f} ms  {1e3 / value:7.0f}/CPU-s  {ratios[name]:5.2f} times")
    if arguments.json:
        result = {"host": host_facts(), "threads": 1, "cases": results}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
