"""SAC on Meta-World beside Stable-Baselines3: env steps a second at one update ratio, and time to 80 % on reach.

Both have the same networks, batch, discount, update ratio, number of environments, warm-up, horizon and threads. SB3
steps the metaworld package in its SubprocVecEnv and in its DummyVecEnv; the better counts. For time to 80 % ours has
the rates of `variant=cpu`, 3e-4 for the actor and 1e-3 for the critics; SB3 has one for all, and each has its turn.

    python benchmarks/metaworld_sac.py rate --json benchmarks/results/metaworld_sac.json
    python benchmarks/metaworld_sac.py learn --seeds 0 1 2 --json benchmarks/results/metaworld_learn.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from powerband.core.device import host_facts

RATIOS = {"1 update a step, 4 environments": (4, 4, 4), "1 update in 16 steps, 16 environments": (16, 16, 1)}
"""Name -> (environments, update interval, updates each time)."""
BATCH, WARMUP = 256, 2_000
SB3_RATES = (3e-4, 1e-3)
OBS_SCALE = 5.0
"""What `variant=cpu` multiplies observations by; SB3 has it in the environment."""


def ours(envs: int, interval: int, updates: int, seconds: float, precision: str) -> float:
    """Env steps a second of the real loop."""
    words = [
        "profile", "metaworld", "task=reach", "gpus=none", "threads=1", f"precision={precision}",
        f"off_policy.num_envs={envs}", f"off_policy.global_batch_size={BATCH}", f"update_interval={interval}",
        f"updates_per_interval={updates}", "sac.policy_interval=1", "sac.target_interval=1", "collect.interval=0",
        f"seconds={seconds:g}", "probe=false",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, "-m", "powerband", *words, f"--json={found}"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(found.read_text())["steps_per_s"]


def theirs(words: dict[str, Any]) -> dict[str, Any]:
    """What `sb3` found, in a process of its own."""
    command = [sys.executable, __file__, "sb3", json.dumps(words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def one(seed: int):
    """The package's environment for SB3: goals drawn, 400 steps."""
    import gymnasium

    from powerband.envs.metaworld.single import MetaWorldEnv

    class Plain(gymnasium.Env):
        def __init__(self) -> None:
            self.env = MetaWorldEnv("reach")
            self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
            self.turn = 0

        def reset(self, *, seed=None, options=None):
            self.turn += 1
            obs, info = self.env.reset(seed=seed_of + 1000 * self.turn)
            return obs * OBS_SCALE, info

        def step(self, action):
            obs, *rest = self.env.step(action)
            return obs * OBS_SCALE, *rest

        def close(self) -> None:
            self.env.close()

    seed_of = seed
    return Plain()


def sb3(words: dict[str, Any]) -> dict[str, Any]:
    """Trains SB3's SAC for `seconds` after its first updates, or until it succeeds in 80 % of 50 episodes."""
    import functools

    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)
    makes = [functools.partial(one, 100_000 * words["seed"] + index) for index in range(words["envs"])]
    kind = SubprocVecEnv if words["vector"] == "subproc" else DummyVecEnv
    env = kind(makes)
    model = SAC(
        "MlpPolicy", env, batch_size=BATCH, learning_starts=words["warmup"], seed=words["seed"], device="cpu",
        train_freq=(max(1, words["interval"] // words["envs"]), "step"), gradient_steps=words["updates"],
        policy_kwargs={"net_arch": [256, 256]}, buffer_size=140_000, gamma=words["gamma"],
        learning_rate=lambda left: words["lr"] * min(1.0, left / 0.5),
    )  # fmt: skip
    notes: list[tuple[float, int, int]] = []
    curve: list[dict[str, float]] = []
    played = [0.0]

    class Window(BaseCallback):
        def _on_step(self) -> bool:
            if words["seconds"]:
                if self.model._n_updates > 0:
                    notes.append((time.perf_counter(), self.num_timesteps, self.model._n_updates))
                return len(notes) < 2 or notes[-1][0] - notes[0][0] < words["seconds"]
            if self.num_timesteps // words["every"] > len(curve):
                began = time.perf_counter()
                wins = success(
                    lambda obs: self.model.predict(obs * OBS_SCALE, deterministic=True)[0], words["episodes"]
                )
                played[0] += time.perf_counter() - began
                spent = time.perf_counter() - started - played[0]
                curve.append({"env_steps": self.num_timesteps, "time_s": spent, "success": wins})
                print(curve[-1], file=sys.stderr, flush=True)
                return wins < 0.8
            return True

    started = time.perf_counter()
    model.learn(words["steps"], callback=Window())
    env.close()
    if words["seconds"]:
        (t0, s0, u0), (t1, s1, u1) = notes[0], notes[-1]
        return {"steps_per_s": (s1 - s0) / (t1 - t0), "updates_per_step": (u1 - u0) / (s1 - s0)}
    return {"curve": curve}


def success(act: Any, episodes: int) -> float:
    """Share of episodes that succeed, the 50 goals in turn."""
    from powerband.envs.metaworld.single import MetaWorldEnv

    env, wins = MetaWorldEnv("reach", goals="cycled"), 0
    for _ in range(episodes):
        obs, _ = env.reset()
        truncated = False
        while not truncated:
            obs, _, _, truncated, info = env.step(act(obs))
            if info["success"]:
                break
        wins += bool(info["success"])
    env.close()
    return wins / episodes


def learned(words: list[str], share: float) -> list[dict[str, float]]:
    """The evaluations of one of our runs up to the first where `share` of the episodes succeeded: env steps, success,
    and seconds without evaluations, read from its log."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "powerband", "train", "metaworld", *words, "variant=cpu", "final_episodes=0"]
        command += ["collect.interval=0", f"run_dir={folder}/run", "tensorboard=false"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        path, rows = Path(folder) / "run" / "metrics.jsonl", []
        try:
            while child.poll() is None:
                time.sleep(0.5)
                lines = path.read_text().splitlines() if path.exists() else []
                rows = [json.loads(line) for line in lines if line.endswith("}")]
                if any(row.get("eval/success", 0) >= share for row in rows):
                    break
        finally:
            child.kill()
            child.wait()
    curve, played, last = [], 0.0, 0.0
    for row in rows:
        played += row.get("perf/share/eval", 0.0) * (row["time_s"] - last)
        last = row["time_s"]
        if "eval/success" in row:
            spent = row["time_s"] - played
            curve.append({"env_steps": row["env_steps"], "time_s": spent, "success": row["eval/success"]})
    return curve


def rate(given: argparse.Namespace) -> dict[str, Any]:
    table = {}
    for name, (envs, interval, updates) in RATIOS.items():
        rows: dict[str, list[float]] = {"powerband bf16": [], "powerband fp32": [], "SB3 subproc": [], "SB3 dummy": []}
        for _ in range(given.rounds):
            for precision in ("bf16", "fp32"):
                rows[f"powerband {precision}"].append(ours(envs, interval, updates, given.seconds, precision))
            for vector in ("subproc", "dummy"):
                words = {"envs": envs, "interval": interval, "updates": updates, "seconds": given.seconds, "seed": 0}
                words |= {"vector": vector, "warmup": WARMUP, "steps": 10**9, "gamma": 0.99, "lr": 3e-4}
                rows[f"SB3 {vector}"].append(theirs(words)["steps_per_s"])
        medians = {who: statistics.median(values) for who, values in rows.items()}
        best = max(medians["SB3 subproc"], medians["SB3 dummy"])
        table[name] = {"steps_per_s": medians, "over_sb3": medians["powerband bf16"] / best}
        table[name] |= {"fp32_over_sb3": medians["powerband fp32"] / best, "rounds": rows}
        print(
            name, {who: round(value) for who, value in medians.items()}, f"{table[name]['over_sb3']:.2f}x", flush=True
        )
    return table


def learn(given: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for seed in given.seeds:
        mine = learned(
            [
                "expert", "task=reach", f"run.seed={seed}", f"precision={given.precision}",
                f"eval_interval={given.every}", f"log_interval={given.every}", f"eval_episodes={given.episodes}",
            ],
            0.8,
        )  # fmt: skip
        words = {"envs": 4, "interval": 4, "updates": 2, "seconds": 0, "seed": seed, "vector": "dummy"}
        words |= {"warmup": 5_000, "steps": 100_000, "every": given.every, "episodes": given.episodes, "gamma": 0.95}
        peers = {f"sb3 at {lr:g}": theirs(words | {"lr": lr}) for lr in SB3_RATES}
        rows.append({"seed": seed, "powerband": {"curve": mine}, **peers})
        print(seed, mine[-1:], {name: peer["curve"][-1:] for name, peer in peers.items()}, flush=True)
        if given.json:  # a seed takes a quarter of an hour, and a run may be cut short
            given.json.write_text(json.dumps({"host": host_facts(), "threads": 1, "rows": rows}, indent=2) + "\n")
    return {"rows": rows}


def main() -> None:
    if sys.argv[1:2] == ["sb3"]:
        print(json.dumps(sb3(json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["rate", "learn"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--every", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {"host": host_facts(), "threads": 1, "batch": BATCH, **{"rate": rate, "learn": learn}[given.what](given)}
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
