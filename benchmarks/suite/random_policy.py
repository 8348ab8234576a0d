"""Measures the mean return of random actions on the suite's environments: the zero of normalised scores.

python benchmarks/suite/random_policy.py
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import gymnasium

from rows import FINAL_EPISODES, FINAL_SEED, TASKS

OUTPUT = Path(__file__).parents[1] / "results" / "suite" / "random.json"


def random_return(env_id: str, episodes: int) -> float:
    """Returns the mean return of `episodes` episodes of uniformly random actions."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    env = gymnasium.make(name)
    env.action_space.seed(FINAL_SEED)
    total = 0.0
    for episode in range(episodes):
        env.reset(seed=FINAL_SEED + episode)
        ended = False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, ended = total + float(reward), terminated or truncated
    env.close()
    return total / episodes


def main() -> None:
    sys.path.append(str(Path(__file__).parent / "envs"))
    ids = {task.name: task.env_id for task in TASKS}
    scores = {name: random_return(env_id, FINAL_EPISODES) for name, env_id in ids.items()}
    OUTPUT.write_text(json.dumps(scores, indent=2) + "\n")
    print(scores)


if __name__ == "__main__":
    main()
