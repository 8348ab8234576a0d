"""Trains with Stable-Baselines3 for some seconds; the benchmark `peers` starts this module as a process.

    python -m powerband.bench.sb3 '{"algo": "sac", "env_id": "Pendulum-v1", "num_envs": 4, ...}'

Prints one line of JSON. The measured window is from the first rollout after an update to the start of the last rollout.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Trains with Stable-Baselines3 (SB3) and measures its rates for some seconds after the first updates.

    Args:
        options: Keys algo, env_id, num_envs, hidden, batch, seconds and threads; for sac also learning_starts; for ppo
            also num_steps, epochs and minibatches.

    Returns:
        {"steps_per_s": environment steps per second, "updates_per_s", "seconds": length of the measured window,
        "start_s": seconds from the call to the window}.
    """
    started = time.perf_counter()
    import torch
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    if options["threads"]:
        torch.set_num_threads(options["threads"])
    num_envs, seconds = options["num_envs"], options["seconds"]
    env = make_vec_env(options["env_id"], num_envs, seed=0)
    shared: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": env,
        "policy_kwargs": {"net_arch": list(options["hidden"])},
        "device": "auto",
    }
    if options["algo"] == "sac":
        # train_freq counts steps of all environments together; gradient_steps=-1 makes one update per transition.
        model: Any = SAC(
            **shared,
            batch_size=options["batch"],
            learning_starts=options["learning_starts"],
            train_freq=1,
            gradient_steps=-1,
        )
        updates_per_count = 1
    else:
        batch = options["num_steps"] * num_envs // options["minibatches"]
        model = PPO(**shared, n_steps=options["num_steps"], batch_size=batch, n_epochs=options["epochs"])
        updates_per_count = options["minibatches"]  # PPO counts epochs as updates

    class Window(BaseCallback):
        """Callback of Stable-Baselines3 that records the start of each rollout, and ends the run after the window."""

        def __init__(self) -> None:
            super().__init__()
            self.rollouts: list[tuple[float, int, int]] = []

        def _on_rollout_start(self) -> None:
            if self.model._n_updates > 0:
                self.rollouts.append((time.perf_counter(), self.num_timesteps, self.model._n_updates))

        def _on_step(self) -> bool:
            return len(self.rollouts) < 2 or self.rollouts[-1][0] - self.rollouts[0][0] < seconds

    window = Window()
    model.learn(10**9, callback=window)
    (start, first_steps, first_updates), (end, last_steps, last_updates) = window.rollouts[0], window.rollouts[-1]
    return {
        "steps_per_s": (last_steps - first_steps) / (end - start),
        "updates_per_s": (last_updates - first_updates) * updates_per_count / (end - start),
        "seconds": end - start,
        "start_s": start - started,
    }


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
