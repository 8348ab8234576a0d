"""Training rate of SAC on Meta-World and time to 80 % success on reach, compared with Stable-Baselines3.

Both libraries use the same networks, batch size, discount, update ratio, number of environments, random steps, horizon
and threads. SB3 steps the metaworld package in SubprocVecEnv and in DummyVecEnv; the faster one is reported. For the
time to 80 %, powerband uses the learning rates of `variant=cpu`: 3e-4 for the actor and 1e-3 for the critics. SB3 has
one learning rate, so it is measured with each of the two.

    python benchmarks/learning/metaworld_sac.py rate --json benchmarks/results/learning/metaworld_sac.json
    python benchmarks/learning/metaworld_sac.py learn --seeds 0 1 2
        --json benchmarks/results/learning/metaworld_learn.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from powerband.core.machine.device import host_facts

RATIOS = {"1 update a step, 4 environments": (4, 4, 4), "1 update in 16 steps, 16 environments": (16, 16, 1)}
"""Name -> (environments, update interval, updates per interval)."""
BATCH, LEARNING_STARTS = 256, 2_000
SB3_LEARNING_RATES = (3e-4, 1e-3)
OBS_SCALE = 5.0
"""Factor on observations in `variant=cpu`; for SB3 the environment applies it."""


def powerband_rate(envs: int, interval: int, updates: int, seconds: float, precision: str) -> float:
    """Returns the environment steps per second of a training run of powerband."""
    arguments = [
        "profile", "metaworld", "task=reach", "gpus=none", "threads=1", f"precision={precision}",
        f"off_policy.num_envs={envs}", f"off_policy.global_batch_size={BATCH}", f"update_interval={interval}",
        f"updates_per_interval={updates}", "sac.policy_interval=1", "sac.target_interval=1", "collect.interval=0",
        f"seconds={seconds:g}", "probe=false",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "powerband", *arguments, f"--json={output}"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(output.read_text())["steps_per_s"]


def sb3_in_process(settings: dict[str, Any]) -> dict[str, Any]:
    """Runs `sb3` in a child process and returns its result."""
    command = [sys.executable, __file__, "sb3", json.dumps(settings)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(result.stdout.strip().splitlines()[-1])


def make_one(seed: int) -> Any:
    """Creates one environment for SB3, with 400 steps per episode and goals drawn by the seed."""
    import gymnasium

    from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv

    class ScaledObs(gymnasium.Env):
        def __init__(self) -> None:
            self.env = MetaWorldEnv("reach")
            self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
            self.episode = 0

        def reset(self, *, seed=None, options=None):
            self.episode += 1
            obs, info = self.env.reset(seed=first_seed + 1000 * self.episode)
            return obs * OBS_SCALE, info

        def step(self, action):
            obs, *rest = self.env.step(action)
            return obs * OBS_SCALE, *rest

        def close(self) -> None:
            self.env.close()

    first_seed = seed
    return ScaledObs()


def sb3(settings: dict[str, Any]) -> dict[str, Any]:
    """Trains SB3's SAC for `seconds` after its first update, or until an evaluation reaches 80 % success."""
    import functools

    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)
    makes = [functools.partial(make_one, 100_000 * settings["seed"] + index) for index in range(settings["envs"])]
    kind = SubprocVecEnv if settings["vector"] == "subproc" else DummyVecEnv
    env = kind(makes)
    model = SAC(
        "MlpPolicy", env, batch_size=BATCH, learning_starts=settings["learning_starts"], seed=settings["seed"],
        device="cpu",
        train_freq=(max(1, settings["interval"] // settings["envs"]), "step"), gradient_steps=settings["updates"],
        policy_kwargs={"net_arch": [256, 256]}, buffer_size=140_000, gamma=settings["gamma"],
        learning_rate=lambda left: settings["lr"] * min(1.0, left / 0.5),
    )  # fmt: skip
    counts: list[tuple[float, int, int]] = []
    """(seconds, environment steps, updates) after each step since the first update."""
    curve: list[dict[str, float]] = []
    eval_s = [0.0]

    class Window(BaseCallback):
        def _on_step(self) -> bool:
            if settings["seconds"]:
                if self.model._n_updates > 0:
                    counts.append((time.perf_counter(), self.num_timesteps, self.model._n_updates))
                return len(counts) < 2 or counts[-1][0] - counts[0][0] < settings["seconds"]
            if self.num_timesteps // settings["every"] > len(curve):
                eval_start = time.perf_counter()
                rate = success_rate(
                    lambda obs: self.model.predict(obs * OBS_SCALE, deterministic=True)[0], settings["episodes"]
                )
                eval_s[0] += time.perf_counter() - eval_start
                spent = time.perf_counter() - start - eval_s[0]
                curve.append({"env_steps": self.num_timesteps, "time_s": spent, "success": rate})
                print(curve[-1], file=sys.stderr, flush=True)
                return rate < 0.8
            return True

    start = time.perf_counter()
    model.learn(settings["steps"], callback=Window())
    env.close()
    if settings["seconds"]:
        (t0, s0, u0), (t1, s1, u1) = counts[0], counts[-1]
        return {"steps_per_s": (s1 - s0) / (t1 - t0), "updates_per_step": (u1 - u0) / (s1 - s0)}
    return {"curve": curve}


def success_rate(act: Callable[[Any], Any], episodes: int) -> float:
    """Returns the share of successful episodes; the goals cycle through the 50 goals of the task."""
    from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv

    env, successes = MetaWorldEnv("reach", goals="cycled"), 0
    for _ in range(episodes):
        obs, _ = env.reset()
        truncated = False
        while not truncated:
            obs, _, _, truncated, info = env.step(act(obs))
            if info["success"]:
                break
        successes += bool(info["success"])
    env.close()
    return successes / episodes


def powerband_curve(arguments: list[str], target: float) -> list[dict[str, float]]:
    """Trains with powerband until an evaluation reaches the success rate `target`.

    Returns:
        Environment steps, success rate, and seconds without evaluations, for each evaluation in the log.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "powerband", "train", "metaworld", *arguments]
        command += "variant=cpu final_episodes=0 collect.interval=0 tensorboard=false".split()
        command += [f"run_dir={folder}/run"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        path, rows = Path(folder) / "run" / "metrics.jsonl", []
        try:
            while child.poll() is None:
                time.sleep(0.5)
                lines = path.read_text().splitlines() if path.exists() else []
                rows = [json.loads(line) for line in lines if line.endswith("}")]
                if any(row.get("eval/success", 0) >= target for row in rows):
                    break
        finally:
            child.kill()
            child.wait()
    curve, eval_s, last_s = [], 0.0, 0.0
    for row in rows:
        eval_s += row.get("perf/share/eval", 0.0) * (row["time_s"] - last_s)
        last_s = row["time_s"]
        if "eval/success" in row:
            training_s = row["time_s"] - eval_s
            curve.append({"env_steps": row["env_steps"], "time_s": training_s, "success": row["eval/success"]})
    return curve


def compare_rates(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the environment steps per second of both libraries at each update ratio."""
    table = {}
    for name, (envs, interval, updates) in RATIOS.items():
        rows: dict[str, list[float]] = {"powerband bf16": [], "powerband fp32": [], "SB3 subproc": [], "SB3 dummy": []}
        for _ in range(options.rounds):
            for precision in ("bf16", "fp32"):
                rows[f"powerband {precision}"].append(
                    powerband_rate(envs, interval, updates, options.seconds, precision)
                )
            for vector in ("subproc", "dummy"):
                settings = {
                    "envs": envs,
                    "interval": interval,
                    "updates": updates,
                    "seconds": options.seconds,
                    "seed": 0,
                }
                settings |= {
                    "vector": vector,
                    "learning_starts": LEARNING_STARTS,
                    "steps": 10**9,
                    "gamma": 0.99,
                    "lr": 3e-4,
                }
                rows[f"SB3 {vector}"].append(sb3_in_process(settings)["steps_per_s"])
        medians = {library: statistics.median(values) for library, values in rows.items()}
        best = max(medians["SB3 subproc"], medians["SB3 dummy"])
        table[name] = {"steps_per_s": medians, "over_sb3": medians["powerband bf16"] / best}
        table[name] |= {"fp32_over_sb3": medians["powerband fp32"] / best, "rounds": rows}
        rounded = {library: round(value) for library, value in medians.items()}
        print(name, rounded, f"{table[name]['over_sb3']:.2f}x", flush=True)
    return table


def compare_learning(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the learning curves of both libraries up to 80 % success for each seed."""
    rows = []
    for seed in options.seeds:
        curve = powerband_curve(
            [
                "expert", "task=reach", f"run.seed={seed}", f"precision={options.precision}",
                f"eval_interval={options.every}", f"log_interval={options.every}", f"eval_episodes={options.episodes}",
            ],
            0.8,
        )  # fmt: skip
        settings = {"envs": 4, "interval": 4, "updates": 2, "seconds": 0, "seed": seed, "vector": "dummy"}
        settings |= {
            "learning_starts": 5_000,
            "steps": 100_000,
            "every": options.every,
            "episodes": options.episodes,
            "gamma": 0.95,
        }
        peers = {f"sb3 at {lr:g}": sb3_in_process(settings | {"lr": lr}) for lr in SB3_LEARNING_RATES}
        rows.append({"seed": seed, "powerband": {"curve": curve}, **peers})
        print(seed, curve[-1:], {name: peer["curve"][-1:] for name, peer in peers.items()}, flush=True)
        if options.json:  # after each seed, because one takes a quarter of an hour and a run may end early
            options.json.write_text(json.dumps({"host": host_facts(), "threads": 1, "rows": rows}, indent=2) + "\n")
    return {"rows": rows}


def main() -> None:
    if sys.argv[1:2] == ["sb3"]:
        print(json.dumps(sb3(json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("measurement", choices=["rate", "learn"], help="training rate, or time to 80 %% success")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--every", type=int, default=5_000, help="environment steps between evaluations")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    comparison = {"rate": compare_rates, "learn": compare_learning}[options.measurement]
    result = {"host": host_facts(), "threads": 1, "batch": BATCH, **comparison(options)}
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
