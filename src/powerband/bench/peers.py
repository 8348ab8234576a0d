"""Benchmark peers: compares SAC and PPO of powerband and Stable-Baselines3 (SB3) on the same environment.

Both packages use the same number of environments, network widths, batch or rollout size and updates per transition.
SB3 steps its environments in the training process, which is its default and its fastest way for small environments.
powerband is measured in the same way, and with worker processes as its recipe decides.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from powerband.bench.harness import (
    Configure,
    Measurement,
    environment,
    interleaved,
    measure,
    options,
    print_header,
    result,
)
from powerband.bench.plot import save_plot, try_plot
from powerband.core.config.ranges import Count, FilePath, Range, Size, Threads, Widths, check_ranges
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
@check_ranges
class Options:
    """Options of the benchmark peers."""

    env_id: str = "Pendulum-v1"
    """Gymnasium id of an environment with continuous actions."""
    algos: tuple[str, ...] = ("sac", "ppo")
    """Algorithms to measure: sac, ppo."""
    num_envs: Size = 4
    """Number of environments."""
    hidden: Widths = (256, 256)
    """Widths of actor and critics."""
    batch: Size = 256
    """Transitions per update of SAC, which makes one update per transition."""
    learning_starts: Count = 500
    """Transitions before SAC's first update."""
    num_steps: Size = 128
    """Steps of each environment per rollout of PPO."""
    epochs: Size = 10
    """Passes of PPO over a rollout."""
    minibatches: Size = 4
    """Mini-batches per pass."""
    threads: Threads = 0
    """CPU threads; 0 leaves the number to each package."""
    seconds: Annotated[float, Range(above=0, at_most=86_400)] = 8.0
    """Seconds per measurement, after the first updates."""
    rounds: Annotated[int, Range(at_least=1, at_most=10000)] = 3
    """Measurements per algorithm and package."""
    plot: FilePath = ""
    """PNG file for a plot; empty for none."""

    def __post_init__(self) -> None:
        unknown = set(self.algos) - {"sac", "ppo"}
        if unknown or not self.algos:
            raise ConfigError(
                f"algos={shortened(','.join(self.algos))} is invalid. Write algos=sac, algos=ppo or algos=sac,ppo."
            )


def peers(arguments: list[str], configure: Configure) -> dict[str, Any]:
    """Measures each algorithm with powerband and, if installed, with SB3; returns the JSON result of `harness.result`.

    Args:
        arguments: Command line after ``powerband bench peers``.
        configure: Function (recipe name, arguments) -> (recipe, stage, configuration).
    """
    config, rest = options(Options, arguments, "powerband bench peers")
    if rest:
        raise ConfigError(f"Unknown option '{rest[0]}' of peers. Available: {', '.join(asdict(config))}.")
    installed = importlib.util.find_spec("stable_baselines3") is not None
    cases: dict[str, Measurement] = {}
    for algo in config.algos:
        train_arguments = _train_arguments(config, algo)
        configure(train_arguments[0], train_arguments[1:])
        cases[f"{algo} powerband"] = partial(measure, [*train_arguments, "num_workers=0"], config.seconds)
        cases[f"{algo} powerband, workers"] = partial(measure, train_arguments, config.seconds)
        if installed:
            cases[f"{algo} sb3"] = partial(_sb3, {**asdict(config), "algo": algo})
    sizes = [config.env_id, f"{config.num_envs} envs", f"hidden {config.hidden}"]
    print_header("peers", sizes, config.rounds, config.seconds)
    if not installed:
        print("stable_baselines3 is not installed and is not measured. Install it with pip install 'powerband[peers]'.")
    report = result("peers", config, sizes, interleaved(cases, config.rounds))
    if installed:
        from importlib.metadata import version

        report["host"]["stable_baselines3"] = version("stable_baselines3")
    try_plot(lambda: save_plot(report, Path(config.plot)), config.plot)
    return report


def _train_arguments(config: Options, algo: str) -> list[str]:
    """Returns the arguments after ``powerband train`` that give powerband the sizes of `config`."""
    hidden = ",".join(map(str, config.hidden))
    shared = ["gym", f"env_id={config.env_id}", f"algo={algo}", f"{algo}.hidden={hidden}", f"threads={config.threads}"]
    if algo == "sac":
        sizes = {
            "off_policy.num_envs": config.num_envs,
            "global_batch_size": config.batch,
            "learning_starts": config.learning_starts,
        }
    else:
        sizes = {"on_policy.num_envs": config.num_envs, "num_steps": config.num_steps, "epochs": config.epochs}
        sizes |= {"minibatches": config.minibatches}
    return [*shared, *(f"{name}={value}" for name, value in sizes.items())]


def _sb3(sb3_options: dict[str, Any]) -> dict[str, Any]:
    """Measures SB3 once in a new process and returns the result of `powerband.bench.sb3.train`.

    Raises:
        ConfigError: The process failed; the message has its last output.
    """
    command = [sys.executable, "-P", "-m", "powerband.bench.sb3", json.dumps(sb3_options)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment())
    if process.returncode:
        raise ConfigError(
            f"The comparison run with Stable-Baselines3 failed. Leave this comparison out, or repair what its output "
            f"names: {' '.join(process.stderr.strip().splitlines()[-2:])[-500:]}"
        )
    return json.loads(process.stdout.strip().splitlines()[-1])
