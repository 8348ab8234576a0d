"""Seconds of training to 80 % success on tasks of Meta-World, compared with Stable-Baselines3.

Both libraries train SAC in fp32 on one core, with the same environments, discount, horizon and annealing of the
learning rate. First both try equally many settings on two other seeds than those reported, with the same limit of
training seconds per trial. Then each library trains with its fastest settings on fresh seeds. The two run at the same
time, each on a core of its own, and exchange the cores after every run. The time to the target ends at the first of
three successive evaluations that reach it. Evaluations have 20 episodes and their time does not count. Tasks that the
file of the results has and the command does not name are kept.

    python benchmarks/learning/metaworld_score.py --json benchmarks/results/learning/metaworld_score.json
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from powerband.core.machine.device import host_facts

TASKS = {"reach": 40_000, "drawer-close": 40_000, "button-press-topdown": 100_000}
"""Task -> environment steps, over which the learning rate falls in the second half."""
TARGET, EPISODES, EVALUATIONS, SUCCESSIVE = 0.8, 20, 32, 3
ENVS, LEARNING_STARTS, GAMMA, OBS_SCALE, ANNEAL_FROM = 8, 2_000, 0.95, 5.0, 0.5
TUNING_SEEDS = (100, 101)
POWERBAND, SB3 = "powerband", "Stable-Baselines3"


@dataclass(frozen=True)
class Setting:
    """Width of two hidden layers, rows of a batch, learning rate, and updates per environment step.

    `correlated` selects the exploration of each library that is correlated over steps: pink noise of powerband, and
    state-dependent noise of Stable-Baselines3 (gSDE) that is drawn again every eight steps. `layer_norm` normalises the
    hidden layers of powerband's critics; Stable-Baselines3 has no such option.
    """

    width: int
    batch: int
    lr: float
    ratio: float
    correlated: bool = False
    layer_norm: bool = False


BOTH = (
    Setting(256, 256, 1e-3, 0.5),
    Setting(64, 128, 1e-3, 1.0),
    Setting(64, 128, 1e-3, 1.0, correlated=True),
    Setting(128, 128, 1e-3, 1.0, correlated=True),
)
SETTINGS = {
    POWERBAND: (
        *BOTH,
        Setting(64, 128, 1e-3, 1.0, correlated=True, layer_norm=True),
        Setting(128, 128, 1e-3, 1.0, correlated=True, layer_norm=True),
    ),
    SB3: (*BOTH, Setting(64, 128, 2e-3, 1.0, correlated=True), Setting(64, 128, 1e-3, 2.0, correlated=True)),
}
"""Library -> settings that it tries. Where powerband tries layer norms, the other tries another rate and ratio."""


@dataclass(frozen=True)
class Trial:
    """One run: a task, a setting, a seed, the budget in environment steps and the limit of training seconds."""

    task: str
    setting: Setting
    seed: int
    steps: int
    limit_s: float

    @property
    def every(self) -> int:
        return self.steps // EVALUATIONS

    @property
    def period(self) -> int:
        """Steps of all environments between two groups of updates: 8 with correlated exploration, else 1.

        Exploration keeps its correlation within a group of steps in Stable-Baselines3.
        """
        return 8 if self.setting.correlated else 1


def train_powerband(trial: Trial, environment: dict[str, str]) -> list[dict[str, float]]:
    """Trains with powerband until the target, the limit or the budget; returns its evaluations."""
    setting = trial.setting
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "train", "metaworld", "expert", f"task={trial.task}", "variant=cpu", "precision=fp32", "num_workers=1",
            f"run.seed={trial.seed}", f"expert_steps={trial.steps}", "final_episodes=0", "collect.interval=0",
            f"off_policy.num_envs={ENVS}", f"off_policy.global_batch_size={setting.batch}",
            f"off_policy.learning_starts={LEARNING_STARTS}", f"off_policy.random_steps={LEARNING_STARTS}",
            f"update_interval={trial.period * ENVS}",
            f"updates_per_interval={round(trial.period * ENVS * setting.ratio)}",
            f"sac.hidden={setting.width},{setting.width}", f"sac.actor_lr={setting.lr}", f"sac.critic_lr={setting.lr}",
            f"sac.gamma={GAMMA}", f"sac.obs_scale={OBS_SCALE}", f"off_policy.anneal_from={ANNEAL_FROM}",
            f"eval_interval={trial.every}", f"log_interval={trial.every}", f"eval_episodes={EPISODES}",
            f"sac.action_noise={'pink' if setting.correlated else 'white'}",
            f"sac.layer_norm={str(setting.layer_norm).lower()}",
            "tensorboard=false", f"run_dir={folder}/run",
        ]  # fmt: skip
        child = subprocess.Popen(
            [sys.executable, "-m", "powerband", *words], stdout=subprocess.DEVNULL, env=environment
        )
        path, curve = Path(folder) / "run" / "metrics.jsonl", []
        try:
            while child.poll() is None:
                time.sleep(0.3)
                lines = path.read_text().splitlines() if path.exists() else []
                rows = [json.loads(line) for line in lines if line.endswith("}")]
                curve = [
                    {"steps": row["env_steps"], "seconds": row["time/training_s"], "success": row["eval/success"]}
                    for row in rows
                    if "eval/success" in row
                ]
                if ended(curve, trial):
                    break
        finally:
            child.kill()
            child.wait()
        return curve


def ended(curve: list[dict[str, float]], trial: Trial) -> bool:
    """True if the target was reached, or if the last evaluation came after the limit and missed the target."""
    if math.isfinite(time_to_target(curve)):
        return True
    return bool(curve) and curve[-1]["seconds"] > trial.limit_s and curve[-1]["success"] < TARGET


def train_sb3(trial: Trial, environment: dict[str, str]) -> list[dict[str, float]]:
    """Trains with Stable-Baselines3 in a child process; returns its evaluations."""
    words = json.dumps({**asdict(trial)})
    child = subprocess.run(
        [sys.executable, __file__, "sb3", words], check=True, capture_output=True, text=True, env=environment
    )
    return json.loads(child.stdout.strip().splitlines()[-1])


def sb3(trial: Trial) -> list[dict[str, float]]:
    """Trains in this process, as `train_sb3`."""
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    setting, curve, eval_s = trial.setting, [], 0.0
    makes = [functools.partial(make_env, trial.task, 100_000 * trial.seed + index) for index in range(ENVS)]
    model = SAC(
        "MlpPolicy", DummyVecEnv(makes), batch_size=setting.batch, learning_starts=LEARNING_STARTS, seed=trial.seed,
        device="cpu", train_freq=(trial.period, "step"), gradient_steps=round(trial.period * ENVS * setting.ratio),
        gamma=GAMMA, use_sde=setting.correlated,
        policy_kwargs={"net_arch": [setting.width] * 2}, buffer_size=140_000,
        learning_rate=lambda left: setting.lr * min(1.0, left / (1 - ANNEAL_FROM)),
    )  # fmt: skip

    class Evaluation(BaseCallback):
        def _on_step(self) -> bool:
            nonlocal eval_s
            if self.num_timesteps // trial.every > len(curve):
                began = time.perf_counter()
                success = success_rate(trial.task, lambda obs: self.model.predict(obs, deterministic=True)[0])
                eval_s += time.perf_counter() - began
                seconds = time.perf_counter() - start - eval_s
                curve.append({"steps": self.num_timesteps, "seconds": seconds, "success": success})
                return not ended(curve, trial)
            return True

    start = time.perf_counter()
    model.learn(trial.steps, callback=Evaluation())
    return curve


def make_env(task: str, first_seed: int) -> Any:
    """Creates one environment for Stable-Baselines3, with scaled observations and goals drawn by the seed."""
    import gymnasium

    from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv

    class ScaledObs(gymnasium.Env):
        def __init__(self) -> None:
            self.env, self.episode = MetaWorldEnv(task), 0
            self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

        def reset(self, *, seed=None, options=None):
            self.episode += 1
            obs, info = self.env.reset(seed=first_seed + 1000 * self.episode)
            return obs * OBS_SCALE, info

        def step(self, action):
            obs, *rest = self.env.step(action)
            return obs * OBS_SCALE, *rest

    return ScaledObs()


def success_rate(task: str, act: Any) -> float:
    """Returns the share of successful episodes; the goals cycle through the 50 goals of the task."""
    from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv

    env, successes = MetaWorldEnv(task, goals="cycled"), 0
    for _ in range(EPISODES):
        (obs, _), truncated, info = env.reset(), False, {"success": 0.0}
        while not truncated and not info["success"]:
            obs, _, _, truncated, info = env.step(act(obs * OBS_SCALE))
        successes += bool(info["success"])
    env.close()
    return successes / EPISODES


def time_to_target(curve: list[dict[str, float]]) -> float:
    """Seconds at the first of `SUCCESSIVE` evaluations in a row that reached the target; infinite if there is none."""
    successes = 0
    for index, point in enumerate(curve):
        successes = successes + 1 if point["success"] >= TARGET else 0
        if successes == SUCCESSIVE:
            return curve[index - SUCCESSIVE + 1]["seconds"]
    return math.inf


def fastest(trials: list[dict[str, Any]], limit_s: float) -> dict[str, Any]:
    """Returns the setting with the smallest mean seconds over its trials; then that with the best last evaluations.

    A trial that missed the target, or reached it after the limit, counts with the limit.
    """

    def key(setting: dict[str, Any]) -> tuple[float, float]:
        rows = [row for row in trials if row["setting"] == setting]
        seconds = statistics.fmean(min(row["seconds"], limit_s) for row in rows)
        return seconds, -statistics.fmean(row["curve"][-1]["success"] if row["curve"] else 0.0 for row in rows)

    return min((row["setting"] for row in trials), key=key)


def run_both(trials: dict[str, Trial], turn: int) -> dict[str, list[dict[str, float]]]:
    """Trains both libraries at the same time, each on a core of its own; odd turns exchange the cores."""
    train, cores = {POWERBAND: train_powerband, SB3: train_sb3}, sorted(os.sched_getaffinity(0))[:2]

    def one(position: int, library: str) -> list[dict[str, float]]:
        os.sched_setaffinity(0, {cores[(position + turn) % 2]})  # of this thread; its child inherits it
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        return train[library](trials[library], {**os.environ, **threads})

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(trials, pool.map(one, range(2), trials), strict=True))


def tune(task: str, limit_s: float) -> dict[str, list[dict[str, Any]]]:
    """Returns the trials of every setting of both libraries, each with all of `TUNING_SEEDS`."""
    tried: dict[str, list[dict[str, Any]]] = {POWERBAND: [], SB3: []}
    for turn in range(len(SETTINGS[SB3])):
        for seed in TUNING_SEEDS:
            trials = {
                library: Trial(task, settings[turn], seed, TASKS[task], limit_s)
                for library, settings in SETTINGS.items()
            }
            for library, curve in run_both(trials, turn + seed).items():
                facts = {"setting": asdict(trials[library].setting), "seed": seed}
                tried[library].append(facts | {"curve": curve, "seconds": time_to_target(curve)})
            seconds = {library: rows[-1]["seconds"] for library, rows in tried.items()}
            print(task, "setting", turn, "seed", seed, seconds, flush=True)
    return tried


def compare(task: str, options: argparse.Namespace, tried: dict[str, list[dict[str, Any]]] | None) -> dict[str, Any]:
    """Tunes both libraries on one task, and trains them with their fastest settings on fresh seeds.

    Args:
        task: Name of the task.
        options: Options of the command line.
        tried: Trials of an earlier tuning, which then is not repeated.
    """
    tried = tried or tune(task, options.trial_seconds)
    best = {library: fastest(trials, options.trial_seconds) for library, trials in tried.items()}
    limit_s, rows = 2 * options.trial_seconds, []
    for seed in options.seeds:
        trials = {
            library: Trial(task, Setting(**setting), seed, TASKS[task], limit_s) for library, setting in best.items()
        }
        curves = run_both(trials, seed)
        seconds = {library: time_to_target(curve) for library, curve in curves.items()}
        rows.append({"seed": seed, "seconds": seconds, "curves": curves})
        print(task, "seed", seed, seconds, flush=True)
    medians = {library: statistics.median(row["seconds"][library] for row in rows) for library in best}
    rule = {"successive": SUCCESSIVE, "evaluations": EVALUATIONS, "trial_s": options.trial_seconds, "limit_s": limit_s}
    return {"tried": tried, "best": best, "rows": rows, "median_s": medians, **rule}


def main() -> None:
    if sys.argv[1:2] == ["sb3"]:
        facts = json.loads(sys.argv[2])
        print(json.dumps(sb3(Trial(**{**facts, "setting": Setting(**facts["setting"])}))))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--trial-seconds", type=float, default=120.0, help="limit of training seconds of a trial")
    parser.add_argument("--json", type=Path, help="file for the results, which keeps those of other tasks")
    parser.add_argument("--keep-settings", action="store_true", help="train with the settings that the file has")
    options = parser.parse_args()
    result: dict[str, Any] = {"host": host_facts(), "target": TARGET, "tasks": {}}
    if options.json and options.json.exists():
        result = json.loads(options.json.read_text())
    for task in options.tasks:
        earlier = result["tasks"].get(task, {})
        compared = compare(task, options, earlier["tried"] if options.keep_settings else None)
        result["tasks"][task] = compared | {"host": host_facts()}
        if options.keep_settings:  # of an earlier version
            result["tasks"][task]["earlier"] = {name: earlier[name] for name in ("rows", "median_s")}
        medians = result["tasks"][task]["median_s"]
        print(f"{task}: {medians}, ratio {medians[SB3] / medians[POWERBAND]:.2f}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
