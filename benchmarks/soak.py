"""Soak: trains six recipes under random faults, resumes after each, and compares the end with an undisturbed run.

Faults: kill -9 at a random instant, kill -9 while a checkpoint is being saved, SIGTERM, and a kill -9 after which a bit
of the newest checkpoint is flipped or one of its files is cut. All of these recipes resume exactly on a CPU with one
thread, so the disturbed run must end with the same bits as the undisturbed one.

    python benchmarks/soak.py --faults 200 --json benchmarks/results/soak.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.cli.main import main as cli
from powerband.core.machine.device import host_facts
from powerband.core.run.checkpoint import load_checkpoint, resolve_resume
from powerband.core.run.manifest import CheckpointError
from powerband.data.recorded.recording import Recording
from powerband.recipes.gym import train as _gym  # noqa: F401, imported once, before the children are forked
from powerband.recipes.libero import train as _libero  # noqa: F401
from powerband.recipes.metaworld.stages import expert as _expert  # noqa: F401
from powerband.recipes.sketchnav import train as _sketchnav  # noqa: F401
from powerband.recipes.snakes import train as _snakes  # noqa: F401
from powerband.recipes.uav import train as _uav  # noqa: F401

COMMON = "gpus=none threads=1 tensorboard=false save_interval_s=1 log_interval_s=0.5 keep_checkpoints=3"
RUNS = {
    "snakes": "snakes algo=ddpg ddpg.hidden=32 off_policy.num_envs=4 global_batch_size=32 learning_starts=40 "
    "env_steps=2000",
    "uav": "uav algo=coma variant=smoke on_policy.num_envs=3 budget=4 minibatch_rows=25 env_steps=2000",
    "gym": "gym algo=sac sac.hidden=160,160 off_policy.num_envs=2 learning_starts=40 num_workers=0 env_steps=1500",
    "metaworld": "metaworld variant=smoke backend=workers num_workers=0 sac.hidden=160 learning_starts=60 "
    "random_steps=60 collect.interval=100000 collect.samples=40 final_episodes=0 horizon=30 env_steps=1500 "
    "project={folder}",
    "sketchnav": "sketchnav variant=smoke env_steps=1000",
    "libero": "libero variant=smoke demos_dir={data} updates=500 max_steps=10 eval_interval=0",
}
"""Recipe -> command line of a run of some seconds."""
FAULTS = ("kill", "kill", "kill", "kill while saving", "SIGTERM", "flipped bit", "cut file")
BY_CLOCK = ("elapsed_s", "evaluation_s", "evaluated_at_s", "rank0/metrics", "shared/run/logged")
"""Parts of a state that depend on seconds: clocks, and the means since the last log line."""
WAIT_S = 300.0


def record_demonstrations(folder: Path) -> None:
    """Writes random demonstrations for libero: two tasks with two episodes each."""
    rng = np.random.default_rng(0)
    for name in ("open", "close"):
        recording = Recording(folder / name, {"instruction": f"{name} the drawer", "hz": 20.0})
        for number, steps in enumerate((9, 6)):
            frames = rng.integers(256, size=(2, steps, 32, 32, 3), dtype=np.uint8)
            turn = rng.standard_normal((steps, 4)).astype(np.float32)
            fields = {
                "agentview": frames[0],
                "wrist": frames[1],
                "joints": rng.standard_normal((steps, 7)).astype(np.float32),
                "gripper": rng.uniform(0, 0.04, (steps, 2)).astype(np.float32) * np.float32([1, -1]),
                "eef_pos": rng.standard_normal((steps, 3)).astype(np.float32),
                "eef_quat": turn / np.linalg.norm(turn, axis=1, keepdims=True),
                "action": rng.uniform(-1, 1, (steps, 7)).astype(np.float32),
            }
            recording.add(number, {field: torch.from_numpy(value) for field, value in fields.items()})
        recording.pack()


class Child:
    """A command of powerband in a forked process, whose output goes to a log."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.began = time.monotonic()
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            status = cli(words)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)

    def ended(self) -> int | None:
        """Returns the exit status, negative after a signal; None while the process runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def wait(self) -> int:
        """Waits for the end and returns the exit status."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def final_state(run: Path) -> dict[str, Any]:
    """Returns the leaves of the newest checkpoint by path, without those that depend on seconds."""
    path, _ = resolve_resume(str(run))
    found: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{name}/{key}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(item, f"{name}/{index}")
        elif not any(part in name for part in BY_CLOCK):
            found[name] = value

    for shard in ("shared", "rank0"):
        walk(load_checkpoint(path, shard)[0], shard)
    return found


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Returns the paths at which two states differ in any bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        return type(a) is type(b) and bool(np.array_equal(a, b, equal_nan=isinstance(a, float)))

    return sorted(name for name in first.keys() | second.keys() if not equal(first.get(name), second.get(name)))


def newest(run: Path) -> int:
    """Returns the step of the newest undamaged checkpoint; -1 without one."""
    try:
        return int(resolve_resume(str(run))[0].name)
    except (CheckpointError, ValueError, OSError):
        return -1


def damage(run: Path, fault: str, rng: random.Random) -> None:
    """Flips a bit of a file of the newest checkpoint, or cuts the file."""
    files = sorted((run / "checkpoints" / str(newest(run))).iterdir())
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    if fault == "flipped bit":
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    else:
        path.write_bytes(data[:at])


def disturb(child: Child, run: Path, fault: str, delay_s: float) -> bool:
    """Sends the signal of a fault at its instant. Returns False if the process has ended before."""
    deadline = child.began + WAIT_S
    while time.monotonic() < deadline:
        if child.ended() is not None:
            return False
        saving = any((run / "checkpoints").glob(".saving-*"))
        if saving if fault == "kill while saving" else time.monotonic() - child.began >= delay_s:
            break
        time.sleep(0.0005)
    os.kill(child.pid, signal.SIGTERM if fault == "SIGTERM" else signal.SIGKILL)
    return True


def soak(name: str, folder: Path, data: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """Disturbs one recipe `count` times, in as many runs as that takes, and compares each run at its end."""
    result: Counter[str] = Counter()
    tally: Counter[str] = Counter()
    problems: list[str] = []

    def words(run: Path) -> list[str]:
        text = f"{RUNS[name]} {COMMON}".format(folder=run, data=data)
        return ["train", *text.split(), f"run_dir={run}"]

    calm = folder / f"{name}-calm"
    child = Child(words(calm), folder / f"{name}.log")
    assert child.wait() == 0, f"{name}: see {folder / name}.log"
    seconds, expected = time.monotonic() - child.began, final_state(calm)
    number = 0
    while sum(tally.values()) < count:
        number += 1
        run = folder / f"{name}-{number}"
        command, before, lost = words(run), -1, False
        while True:
            fault = rng.choice(FAULTS)
            child = Child(command, folder / f"{name}.log")
            if sum(tally.values()) >= count or not disturb(child, run, fault, rng.uniform(0.3, seconds)):
                with contextlib.suppress(ChildProcessError):
                    child.wait()
                break
            status = child.wait()
            tally[fault] += 1
            if fault == "SIGTERM" and newest(run) >= 0 and status != 128 + signal.SIGTERM and status != 0:
                lost = lost or (run / "run.json").exists() and status not in (-signal.SIGTERM,)
            after = newest(run)
            if after < before:
                problems.append(f"{name}-{number}: the checkpoint {before} is gone after {fault}")
            if fault in ("flipped bit", "cut file") and after >= 0:
                damage(run, fault, rng)
                after = newest(run)
            before = after
            command = ["train", name, f"resume={run}"] if after >= 0 else command
            if after < 0:
                result["killed before the first checkpoint"] += 1
                run = folder / f"{name}-{number}-{sum(tally.values())}"
                command = words(run)
        if newest(run) < 0:
            problems.append(f"{name}-{number}: no checkpoint at the end")
            continue
        different = differences(expected, final_state(run))
        result["runs with the same bits" if not different else "runs with other bits"] += 1
        if different or lost:
            problems.append(f"{name}-{number}: {different[:3]}")
    log = (folder / f"{name}.log").read_text(errors="replace")
    return {**result, "faults": dict(tally), "tracebacks": log.count("Traceback"), "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=60, help="faults over all recipes")
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=list(RUNS), help="recipes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="folder of the runs; a temporary one by default")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="powerband-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    record_demonstrations(folder / "data")
    rng, results = random.Random(options.seed), {}
    for name in options.only:
        began = time.monotonic()
        results[name] = soak(name, folder, folder / "data", -(-options.faults // len(options.only)), rng)
        print(f"{name}: {results[name]}, {time.monotonic() - began:.0f} s", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"host": host_facts(), "seed": options.seed, "recipes": results}) + "\n")


if __name__ == "__main__":
    main()
