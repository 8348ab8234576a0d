"""CPU time per update of DQN, compared with Stable-Baselines3, tianshou and TorchRL.

Every implementation samples its batch from its own replay, runs in one process on one thread, and uses Adam. They are
interleaved; each result is the median over rounds. The benchmark measures CPU time, as `updates.py` does. powerband and
tianshou are measured with double Q-learning, their default; "single" is powerband without it, as Stable-Baselines3, and
"operators" is powerband without its compiled functions, which images do not use.

    pip install 'powerband[peers,more-peers]'
    python benchmarks/updates/dqn_updates.py --json benchmarks/results/updates/dqn_updates.json
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from powerband.algos.dqn import DQN
from powerband.algos.settings import DQNConfig
from powerband.core.optim.precision import PrecisionName
from powerband.core.rank_context import RankContext
from powerband.data.replay import Replay
from powerband.data.types import EnvSpec, TensorSpec
from powerband.nets.observations.encoders import ObsEncoder
from updates import ROWS, Update, measure

ACTIONS, INPUTS, PLANES = 6, 8, 4
"""Actions; entries of an observation vector; planes of 10 x 10 cells in an image."""
LR = 5e-4


class Case(NamedTuple):
    """Observations, images or vectors; units of the two hidden layers for vectors; rows of a batch."""

    images: bool
    units: int
    batch: int


def observations(images: bool) -> np.ndarray:
    """Returns ROWS random observations: vectors, or planes (PLANES, 10, 10) of zeros and ones."""
    generator = np.random.default_rng(0)
    if images:
        return (generator.random((ROWS, PLANES, 10, 10)) < 0.1).astype(np.uint8)
    return generator.standard_normal((ROWS, INPUTS), dtype=np.float32)


class Network(nn.Module):
    """The network of the peers: two hidden layers, or the convolution of MinAtar and 128 features."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Linear(INPUTS, case.units),
            nn.ReLU(),
            nn.Linear(case.units, case.units),
            nn.ReLU(),
        ]
        if case.images:
            layers = [nn.Conv2d(PLANES, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(128 if case.images else case.units, ACTIONS))

    def forward(self, obs: Tensor) -> Tensor:
        """Maps observations (B, ...) to values (B, ACTIONS)."""
        return self.layers(obs.float())


class TianshouNetwork(Network):
    """The same network with the signature that tianshou calls."""

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        return super().forward(torch.as_tensor(obs)), state


def powerband_dqn(case: Case, precision: PrecisionName = "fp32", **settings: Any) -> Update:
    """Returns the update of powerband's DQN; its images are boolean and have the channels last, as in MinAtar."""
    shape, dtype = ((10, 10, PLANES), torch.bool) if case.images else ((INPUTS,), torch.float32)
    spec = EnvSpec(TensorSpec(shape, dtype), TensorSpec((), torch.int64), num_actions=ACTIONS)
    context = RankContext.single(precision=precision)
    encoder = ObsEncoder(spec.obs) if case.images else None
    learner = DQN(spec, DQNConfig(lr=LR, hidden=() if case.images else (case.units,) * 2, **settings), context, encoder)
    fields = {"obs": spec.obs, "next_obs": spec.obs, "action": spec.action, "reward": TensorSpec(())}
    replay = Replay(ROWS, ROWS, "cpu", {**fields, "terminated": TensorSpec((), torch.bool)})
    obs = torch.from_numpy(observations(case.images)).to(dtype)
    obs = obs.permute(0, 2, 3, 1) if case.images else obs
    transitions = {"obs": obs, "next_obs": obs, "action": torch.randint(ACTIONS, (ROWS,)), "reward": torch.randn(ROWS)}
    replay.add({**transitions, "terminated": torch.zeros(ROWS, dtype=torch.bool)})
    noise = context.noise("replay", case.batch)
    return lambda: learner.update(replay.sample(case.batch, noise))


def space(images: bool) -> gymnasium.spaces.Box:
    """Returns the observation space of the peers."""
    if images:
        return gymnasium.spaces.Box(0, 1, (PLANES, 10, 10), np.uint8)
    return gymnasium.spaces.Box(-np.inf, np.inf, (INPUTS,), np.float32)


def sb3_dqn(case: Case) -> Update:
    """Returns ``train()`` of Stable-Baselines3's DQN, which samples from its replay buffer."""
    from stable_baselines3 import DQN as SB3DQN
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class StaticEnv(gymnasium.Env):
        observation_space, action_space = space(case.images), gymnasium.spaces.Discrete(ACTIONS)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    class MinAtar(BaseFeaturesExtractor):
        def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
            super().__init__(observation_space, 128)
            self.layers = Network(case).layers[:-1]

        def forward(self, obs: Tensor) -> Tensor:
            return self.layers(obs.float())

    policy: dict[str, Any] = {"net_arch": [case.units, case.units]}
    if case.images:
        policy = {"net_arch": [], "features_extractor_class": MinAtar, "normalize_images": False}
    model = SB3DQN("MlpPolicy", StaticEnv(), LR, buffer_size=ROWS, device="cpu", policy_kwargs=policy)
    model.set_logger(Logger(None, []))
    generator = np.random.default_rng(0)
    for obs in observations(case.images):
        action, reward = generator.integers(ACTIONS, size=1), generator.standard_normal(1)
        model.replay_buffer.add(obs, obs, action, reward, np.zeros(1), [{}])
    return lambda: model.train(gradient_steps=1, batch_size=case.batch)


def tianshou_dqn(case: Case) -> Update:
    """Returns the update of tianshou's DQN, which samples from its replay buffer."""
    from tianshou.algorithm import DQN as TianshouDQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, ReplayBuffer
    from tianshou.utils.torch_utils import policy_within_training_step

    actions = gymnasium.spaces.Discrete(ACTIONS)
    policy = DiscreteQLearningPolicy(model=TianshouNetwork(case), action_space=actions)
    learner = TianshouDQN(policy=policy, optim=AdamOptimizerFactory(lr=LR), target_update_freq=250)
    buffer, generator = ReplayBuffer(ROWS), np.random.default_rng(0)
    for obs in observations(case.images):
        action, reward = int(generator.integers(ACTIONS)), float(generator.standard_normal())
        row = {"obs": obs, "act": action, "rew": reward, "obs_next": obs, "info": {}}
        buffer.add(Batch(**row, terminated=False, truncated=False))

    def update() -> None:
        with policy_within_training_step(policy):
            learner.update(buffer, case.batch)

    return update


def torchrl_dqn(case: Case) -> Update:
    """Returns an update as in TorchRL's examples: sample, loss, clipped step, soft update of the target."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    actor = QValueActor(Network(case), in_keys=["observation"], action_space="categorical")
    loss_module = DQNLoss(actor, loss_function="smooth_l1", double_dqn=True, action_space="categorical")
    loss_module.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss_module, tau=0.005)
    adam = torch.optim.Adam(loss_module.parameters(), lr=LR)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), batch_size=case.batch)
    obs, flags = torch.from_numpy(observations(case.images)), torch.zeros(ROWS, 1, dtype=torch.bool)
    following = {"observation": obs, "reward": torch.randn(ROWS, 1), "done": flags, "terminated": flags}
    action = torch.randint(ACTIONS, (ROWS,))
    buffer.extend(TensorDict({"observation": obs, "action": action, "next": following}, batch_size=[ROWS]))

    def update() -> None:
        loss = loss_module(buffer.sample())["loss"]
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(loss_module.parameters(), 10.0)
        adam.step()
        target.step()

    return update


CASES = ((False, 64, 64), (False, 64, 256), (False, 128, 128), (False, 256, 128), (True, 0, 64), (True, 0, 256))
PEERS: dict[str, Callable[[Case], Update]] = {"sb3": sb3_dqn, "tianshou": tianshou_dqn, "torchrl": torchrl_dqn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds")
    parser.add_argument("--updates", type=int, default=50, help="updates per round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for case in map(Case._make, CASES):
        torch.manual_seed(0)
        implementations = {
            "powerband": powerband_dqn(case),
            "bf16": powerband_dqn(case, "bf16"),
            "single": powerband_dqn(case, double=False),
            "operators": powerband_dqn(case, fused=False),
        }
        for name, make in PEERS.items():
            try:
                implementations[name] = make(case)
            except ImportError:
                print(
                    f"{name} is not installed. Install it with pip install 'powerband[peers,more-peers]' to measure it."
                )
        name = f"{'MinAtar encoder' if case.images else f'2 x {case.units} hidden'}, batch {case.batch}"
        times = measure(implementations, arguments.rounds, arguments.updates)
        results[name] = {
            "cpu_ms": times,
            "speedup": {name: value / times["powerband"] for name, value in times.items()},
        }
        print(name)
        for name, value in times.items():
            print(f"  {name:10s} {value:8.3f} ms  {1e3 / value:7.0f}/CPU-s  {value / times['powerband']:5.2f} times")
    if arguments.json:
        machine = platform.processor() or platform.machine()
        result = {"machine": machine, "torch": torch.__version__, "threads": 1, "cases": results}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
