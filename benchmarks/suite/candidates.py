"""Measures candidates for the defaults of the recipe gym and for its tuned settings, on other seeds than the suite's.

Each result is one file in `benchmarks/results/tuned`; a run whose file exists is not repeated. Without ``--runs`` the
script prints the results that exist.

    python benchmarks/suite/candidates.py --runs ~/candidate-runs --only 'Hopper-v5-ppo-*' --seeds 100 101
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from fnmatch import fnmatch
from pathlib import Path

from powerband_row import train_powerband

RESULTS = Path(__file__).parents[1] / "results" / "tuned"

PPO = "hyper=default on_policy.num_envs=8 on_policy.num_steps=256 on_policy.minibatches=32 on_policy.epochs=10"
PPO += " ppo.shared_trunk=false"
CONSTANT = f"{PPO} on_policy.anneal_lr=false"
REWARDS = "on_policy.normalize_reward=true"
DEFAULTS = {
    "annealed": PPO,
    "annealed-normalized": f"{PPO} ppo.normalize_obs=true",
    "constant": f"{CONSTANT} ppo.normalize_obs=false ppo.log_std=0",
    "constant-normalized": f"{CONSTANT} ppo.normalize_obs=true ppo.log_std=0",
    "constant-narrow": f"{CONSTANT} ppo.normalize_obs=false ppo.log_std=-0.5",
    "constant-normalized-narrow": f"{CONSTANT} ppo.normalize_obs=true ppo.log_std=-0.5",
    "constant-narrow-rewards": f"{CONSTANT} ppo.normalize_obs=false ppo.log_std=-0.5 {REWARDS}",
    "constant-normalized-narrow-rewards": f"{CONSTANT} ppo.normalize_obs=true ppo.log_std=-0.5 {REWARDS}",
}
"""Candidates for the general settings of PPO: learning rate, initial deviation of actions, normalised observations and
rewards."""
STEPS = {"Hopper-v5": 300_000, "HalfCheetah-v5": 300_000, "LunarLander-v3": 200_000}
DEFAULT_STEPS = 100_000
TASKS = ("Hopper-v5", "HalfCheetah-v5", "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "LunarLander-v3")
TUNED: dict[tuple[str, str], dict[str, str]] = {
    ("CartPole-v1", "ppo"): {
        "zoo": "on_policy.num_steps=32 on_policy.minibatches=1 on_policy.epochs=20 on_policy.gamma=0.98 "
        "on_policy.gae_lambda=0.8 ppo.lr=1e-3",
    },
    ("Acrobot-v1", "ppo"): {
        "zoo": "on_policy.num_envs=16 on_policy.num_steps=256 on_policy.minibatches=64 on_policy.epochs=4 "
        "on_policy.gae_lambda=0.94 ppo.normalize_obs=true",
    },
    ("Pendulum-v1", "ppo"): {
        "zoo": "on_policy.num_envs=4 on_policy.num_steps=1024 on_policy.minibatches=64 on_policy.gamma=0.9 ppo.lr=1e-3",
    },
    ("LunarLander-v3", "ppo"): {
        "zoo": "on_policy.num_envs=16 on_policy.num_steps=1024 on_policy.minibatches=256 on_policy.epochs=4 "
        "on_policy.gamma=0.999 on_policy.gae_lambda=0.98 ppo.entropy_coef=0.01",
    },
}
"""(Task, algorithm) -> name of a candidate -> settings that differ from the general ones."""


def candidates() -> dict[str, tuple[str, str, int, list[str]]]:
    """Returns name -> (task, algorithm, environment steps, settings) of every candidate."""
    found = {}
    for task in TASKS:
        for name, settings in DEFAULTS.items():
            found[f"{task}-ppo-{name}"] = (task, "ppo", STEPS.get(task, DEFAULT_STEPS), settings.split())
    for (task, algo), entries in TUNED.items():
        for name, settings in entries.items():
            steps = STEPS.get(task, DEFAULT_STEPS)
            found[f"{task}-{algo}-{name}"] = (task, algo, steps, ["hyper=default", *settings.split()])
    return found


def show(path: Path) -> None:
    """Prints a result: every fourth evaluation, the final score and the CPU seconds."""
    result = json.loads(path.read_text())
    returns = " ".join(f"{point['return']:,.0f}" for point in result["curve"][3::4])
    print(f"{path.stem}: {returns}; final {result['final']['return']:,.1f}; {result['curve'][-1]['cpu_s']:.0f} CPU s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, help="folder of run folders, outside of the checkout")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of candidate names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--pause-file", type=Path, help="start no run while this file exists")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, (task, algo, steps, settings) in candidates().items():
        if options.runs is None or not any(fnmatch(name, pattern) for pattern in options.only):
            continue
        for seed in options.seeds:
            path = RESULTS / f"{name}-{seed}.json"
            if path.exists():
                continue
            while options.pause_file and options.pause_file.exists():
                time.sleep(1)
            folder = options.runs / f"{name}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            result = train_powerband(task, algo, steps, seed, settings, folder)
            load = round(os.getloadavg()[2], 1)
            path.write_text(json.dumps({"candidate": name, "seed": seed, "load": load, **result}) + "\n")
            show(path)
    if options.runs is None:
        for path in sorted(RESULTS.glob("*.json")):
            show(path)


if __name__ == "__main__":
    main()
