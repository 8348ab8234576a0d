"""`powerband bench peers`: SAC and PPO of this package and of Stable-Baselines3 on the same environment.

Same sizes on both sides: environments, network widths, batch or rollout, updates a transition. SB3 steps its
environments in the training process (its own default, and its fastest on small ones); this package is measured so,
and with worker processes as its recipe decides.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from powerband.bench.harness import Configure, environment, header, interleaved, measure, options, result
from powerband.bench.plot import save_plot
from powerband.core.config import ConfigError


@dataclass(frozen=True)
class Options:
    env_id: str = "Pendulum-v1"
    """A Gymnasium id with continuous actions."""
    algos: tuple[str, ...] = ("sac", "ppo")
    """sac, ppo."""
    num_envs: int = 4
    """Environments."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of actor and critics."""
    batch: int = 256
    """Transitions of an update of SAC; one update a transition."""
    warmup: int = 500
    """Transitions before SAC's first update."""
    num_steps: int = 128
    """Steps of each environment in a rollout of PPO."""
    epochs: int = 10
    """Passes over a rollout."""
    minibatches: int = 4
    """Mini-batches in a pass."""
    threads: int = 0
    """CPU threads of each; 0 is as each decides."""
    seconds: float = 8.0
    """Seconds of a measurement, after the first updates."""
    rounds: int = 3
    """Measurements of each."""
    plot: str = ""
    """PNG to draw into."""

    def __post_init__(self) -> None:
        unknown = set(self.algos) - {"sac", "ppo"}
        if unknown or not self.algos:
            raise ConfigError(f"algos={','.join(self.algos)}: write algos=sac, algos=ppo or algos=sac,ppo.")


def peers(words: list[str], configure: Configure) -> dict[str, Any]:
    """Measures each algorithm of each package in turn; only this package where SB3 is not installed."""
    config, rest = options(Options, words, "powerband bench peers")
    if rest:
        raise ConfigError(f"'{rest[0]}' means nothing to peers. Its options: {', '.join(asdict(config))}.")
    installed = importlib.util.find_spec("stable_baselines3") is not None
    cases = {}
    for algo in config.algos:
        own = _words(config, algo)
        configure(own[0], own[1:])
        cases[f"{algo} powerband"] = partial(measure, [*own, "num_workers=0"], config.seconds)
        cases[f"{algo} powerband, workers"] = partial(measure, own, config.seconds)
        if installed:
            cases[f"{algo} sb3"] = partial(_sb3, {**asdict(config), "algo": algo})
    shown = [config.env_id, f"{config.num_envs} envs", f"hidden {config.hidden}"]
    header("peers", shown, config.rounds, config.seconds)
    if not installed:
        print("stable_baselines3 is not installed: pip install 'powerband[peers]' to measure it too")
    found = result("peers", config, shown, interleaved(cases, config.rounds))
    if installed:
        from importlib.metadata import version

        found["host"]["stable_baselines3"] = version("stable_baselines3")
    if config.plot:
        print(f"plot: {save_plot(found, Path(config.plot))}")
    return found


def _words(config: Options, algo: str) -> list[str]:
    """What is typed after ``powerband train`` for the same sizes."""
    hidden = ",".join(map(str, config.hidden))
    shared = ["gym", f"env_id={config.env_id}", f"algo={algo}", f"{algo}.hidden={hidden}", f"threads={config.threads}"]
    if algo == "sac":
        sizes = {"off_policy.num_envs": config.num_envs, "global_batch_size": config.batch, "warmup": config.warmup}
    else:
        sizes = {"on_policy.num_envs": config.num_envs, "num_steps": config.num_steps, "epochs": config.epochs}
        sizes |= {"minibatches": config.minibatches}
    return [*shared, *(f"{name}={value}" for name, value in sizes.items())]


def _sb3(words: dict[str, Any]) -> dict[str, Any]:
    """One measurement of SB3 in a process of its own.

    Raises:
        ConfigError: It failed; with its last words.
    """
    command = [sys.executable, "-m", "powerband.bench.sb3", json.dumps(words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise ConfigError(f"Stable-Baselines3 failed: {' '.join(done.stderr.strip().splitlines()[-2:])[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
