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
from fnmatch import fnmatch
from pathlib import Path

from powerband_row import train_powerband
from work_queue import WorkQueue, add_options

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
DQN_DEFAULTS = {
    "wide": "dqn.hidden=[256,256] off_policy.global_batch_size=256",
    "wide-128": "dqn.hidden=[256,256] off_policy.global_batch_size=128",
    "narrow-256": "dqn.hidden=[128,128] off_policy.global_batch_size=256",
    "narrow-128": "dqn.hidden=[128,128] off_policy.global_batch_size=128",
    "narrow-64": "dqn.hidden=[128,128] off_policy.global_batch_size=64",
    "narrower-128": "dqn.hidden=[64,64] off_policy.global_batch_size=128",
    "narrow-128-hard": "dqn.hidden=[128,128] off_policy.global_batch_size=128 dqn.tau=1 dqn.target_interval=250",
    "narrow-128-slow": "dqn.hidden=[128,128] off_policy.global_batch_size=128 dqn.lr=2e-4",
}
"""Candidates for the general settings of DQN: widths, rows of a batch, target network, learning rate."""
DQN_TASKS = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3")
SAC_DEFAULTS = {
    "wide": "sac.hidden=[256,256] off_policy.global_batch_size=256",
    "narrow-256": "sac.hidden=[128,128] off_policy.global_batch_size=256",
    "narrow-128": "sac.hidden=[128,128] off_policy.global_batch_size=128",
    "narrower-128": "sac.hidden=[64,64] off_policy.global_batch_size=128",
}
"""Candidates for settings of SAC: widths and rows of a batch."""
SAC_STEPS = {"HalfCheetah-v5": 100_000, "Hopper-v5": 100_000, "Walker2d-v5": 100_000, "Pendulum-v1": 20_000}
STEPS = {"Hopper-v5": 300_000, "HalfCheetah-v5": 300_000, "LunarLander-v3": 200_000, "MountainCarContinuous-v0": 20_000}
DEFAULT_STEPS = 100_000
DQN_STEPS = 60_000
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
    ("MountainCarContinuous-v0", "ppo"): {
        "white": "on_policy.num_envs=2 on_policy.num_steps=256 on_policy.minibatches=8 ppo.normalize_obs=true "
        "on_policy.normalize_reward=true",
        "pink": "on_policy.num_envs=2 on_policy.num_steps=256 on_policy.minibatches=8 ppo.normalize_obs=true "
        "on_policy.normalize_reward=true ppo.action_noise=pink",
    },
    ("MountainCarContinuous-v0", "sac"): {
        "white": "sac.hidden=[64,64] sac.actor_lr=1e-3 sac.critic_lr=1e-3",
        "pink": "sac.hidden=[64,64] sac.actor_lr=1e-3 sac.critic_lr=1e-3 sac.action_noise=pink",
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
    for task in DQN_TASKS:
        for name, settings in DQN_DEFAULTS.items():
            found[f"{task}-dqn-{name}"] = (task, "dqn", DQN_STEPS, ["hyper=default", *settings.split()])
    for task, steps in SAC_STEPS.items():
        for name, settings in SAC_DEFAULTS.items():
            found[f"{task}-sac-{name}"] = (task, "sac", steps, ["hyper=default", *settings.split()])
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


def run(name: str, seed: int, folder: Path) -> None:
    """Trains a candidate in the run folder `folder` and writes its result."""
    task, algo, steps, settings = candidates()[name]
    shutil.rmtree(folder, ignore_errors=True)
    result = train_powerband(task, algo, steps, seed, settings, folder)
    load = round(os.getloadavg()[2], 1)
    path = RESULTS / f"{name}-{seed}.json"
    path.write_text(json.dumps({"candidate": name, "seed": seed, "load": load, **result}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--one", nargs=3, metavar=("NAME", "SEED", "FOLDER"), help="run one candidate in this process")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if options.one:
        name, seed, folder = options.one
        run(name, int(seed), Path(folder))
    elif options.runs:
        names = [f"{name}-{seed}" for seed in options.seeds for name in candidates()]
        missing = [
            name
            for name in names
            if any(fnmatch(name, pattern) for pattern in options.only) and not (RESULTS / f"{name}.json").exists()
        ]
        work = [(name, ["candidates.py", "--one", *name.rsplit("-", 1), str(options.runs / name)]) for name in missing]
        WorkQueue(options).run_all(work)
    else:
        for path in sorted(RESULTS.glob("*.json")):
            show(path)


if __name__ == "__main__":
    main()
