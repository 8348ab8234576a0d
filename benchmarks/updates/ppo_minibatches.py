"""CPU time per mini-batch of PPO: 64 rows, two trunks of 64 x 64, Hopper's sizes, on one thread.

An epoch of 2,048 rows is measured with its sampling, and its time is divided by its 32 mini-batches. Epochs of the
implementations are interleaved; each result is the median over rounds.

    python benchmarks/updates/ppo_minibatches.py --json benchmarks/results/updates/ppo_minibatches.json
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import torch

from powerband.algos.ppo import PPO
from powerband.algos.settings import PPOConfig
from powerband.core.rank_context import RankContext
from powerband.data.rollout import minibatches
from powerband.data.types import EnvSpec, TensorSpec
from updates import Update, measure

INPUTS, ACTIONS, STEPS, ENVS, ROWS = 11, 3, 256, 8, 64
COUNT = STEPS * ENVS // ROWS


def powerband_epoch(fused: bool, whole: bool) -> Update:
    """Returns one epoch of powerband's PPO.

    Args:
        fused: Use compiled functions instead of PyTorch.
        whole: Make one call for the epoch, as the loop does on one rank.
    """
    bounds = torch.ones(ACTIONS)
    spec = EnvSpec(TensorSpec((INPUTS,)), TensorSpec((ACTIONS,)), low=-bounds, high=bounds)
    context = RankContext.single()
    learner = PPO(spec, PPOConfig(hidden=(64, 64), shared_trunk=False, entropy_coef=0.0, fused=fused), context)
    obs = torch.randn(STEPS * ENVS, INPUTS)
    _, extras, _ = learner.act(obs, None, True)
    rows = {"obs": obs, **extras, "advantages": torch.randn(len(obs)), "returns": torch.randn(len(obs))}
    data = {name: leaf.unflatten(0, (STEPS, ENVS)) for name, leaf in rows.items()}
    data["action"] = data["raw_action"]
    shuffle = context.noise("shuffle", len(obs))

    def epoch() -> None:
        if whole:
            learner.update_epoch(data, shuffle.permutation(), ROWS)
        else:
            for batch in minibatches(data, ROWS, shuffle):
                learner.update(batch)

    return epoch


def sb3_epoch() -> Update:
    """Returns ``train()`` of Stable-Baselines3's PPO with one epoch over a rollout of the same size."""
    import gymnasium
    from stable_baselines3 import PPO as SB3PPO
    from stable_baselines3.common.logger import Logger

    class StaticEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (INPUTS,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)

        def reset(self, *, seed=None, options=None):
            return np.zeros(INPUTS, np.float32), {}

    model = SB3PPO("MlpPolicy", StaticEnv(), n_steps=STEPS * ENVS, batch_size=ROWS, n_epochs=1, device="cpu")
    model.set_logger(Logger(None, []))
    draw, buffer = np.random.default_rng(0), model.rollout_buffer
    for _ in range(STEPS * ENVS):
        obs, action = draw.standard_normal((1, INPUTS)), draw.standard_normal((1, ACTIONS))
        value, log_prob = torch.zeros(1, 1), torch.full((1,), -4.0)
        buffer.add(obs, action, draw.standard_normal(1), np.zeros(1), value, log_prob)
    buffer.compute_returns_and_advantage(torch.zeros(1, 1), np.zeros(1))
    return model.train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=25, help="interleaved rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    epochs = {
        "sb3": sb3_epoch(),
        "PyTorch": powerband_epoch(False, False),
        "fused, single updates": powerband_epoch(True, False),
        "fused, whole epochs": powerband_epoch(True, True),
    }
    times = {name: epoch_ms / COUNT for name, epoch_ms in measure(epochs, arguments.rounds, 1).items()}
    for name, milliseconds in times.items():
        print(f"{name:24s} {milliseconds:7.3f} ms   {times['sb3'] / milliseconds:5.2f}x of sb3")
    if arguments.json:
        machine = platform.processor() or platform.machine()
        result = {"machine": machine, "torch": torch.__version__, "threads": 1, "cpu_ms_per_minibatch": times}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
