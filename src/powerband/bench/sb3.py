"""Stable-Baselines3 on one environment for some seconds: what `peers` starts in a process of its own.

    python -m powerband.bench.sb3 '{"algo": "sac", "env_id": "Pendulum-v1", "num_envs": 4, ...}'

Prints one line of JSON. Time counts from the first rollout after an update to the start of the last one.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def train(words: dict[str, Any]) -> dict[str, Any]:
    """Trains until `seconds` after the first updates.

    Args:
        words: algo, env_id, num_envs, hidden, batch, seconds, threads; for sac warmup; for ppo num_steps, epochs,
            minibatches.

    Returns:
        steps_per_s, updates_per_s, seconds, start_s.
    """
    started = time.perf_counter()
    import torch
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    if words["threads"]:
        torch.set_num_threads(words["threads"])
    num_envs, seconds = words["num_envs"], words["seconds"]
    env = make_vec_env(words["env_id"], num_envs, seed=0)
    shared = {"policy": "MlpPolicy", "env": env, "policy_kwargs": {"net_arch": list(words["hidden"])}, "device": "auto"}
    if words["algo"] == "sac":
        # train_freq counts steps of all environments together; as many updates as transitions: ratio 1
        model: Any = SAC(
            **shared, batch_size=words["batch"], learning_starts=words["warmup"], train_freq=1, gradient_steps=-1
        )
        updates_each = 1
    else:
        batch = words["num_steps"] * num_envs // words["minibatches"]
        model = PPO(**shared, n_steps=words["num_steps"], batch_size=batch, n_epochs=words["epochs"])
        updates_each = words["minibatches"]  # it counts epochs

    class Window(BaseCallback):
        """Notes the start of each rollout, and ends the run when the window is over."""

        def __init__(self) -> None:
            super().__init__()
            self.notes: list[tuple[float, int, int]] = []

        def _on_rollout_start(self) -> None:
            if self.model._n_updates > 0:
                self.notes.append((time.perf_counter(), self.num_timesteps, self.model._n_updates))

        def _on_step(self) -> bool:
            return len(self.notes) < 2 or self.notes[-1][0] - self.notes[0][0] < seconds

    window = Window()
    model.learn(10**9, callback=window)
    (start, steps, updates), (end, steps_then, updates_then) = window.notes[0], window.notes[-1]
    took = end - start
    return {
        "steps_per_s": (steps_then - steps) / took,
        "updates_per_s": (updates_then - updates) * updates_each / took,
        "seconds": took,
        "start_s": start - started,
    }


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
