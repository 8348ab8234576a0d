"""Runs of some seconds that the soak disturbs: their command lines, their processes and their states at the end."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from powerband.cli.main import main as cli
from powerband.core.machine.utilisation import process_tree
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume
from powerband.core.run.checkpoints.manifest import CheckpointError
from powerband.core.run_folder import process_start_ticks, read_object
from powerband.recipes.gym import train as _gym  # noqa: F401, imported once, before the children are forked
from powerband.recipes.libero import train as _libero  # noqa: F401
from powerband.recipes.metaworld.stages import expert as _expert  # noqa: F401
from powerband.recipes.sketchnav import train as _sketchnav  # noqa: F401
from powerband.recipes.snakes import train as _snakes  # noqa: F401
from powerband.recipes.uav import train as _uav  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import runs  # noqa: E402, of the tests

COMMON = "gpus=none threads=1 precision=fp32 tensorboard=false log_interval_s=0.5 keep_checkpoints=3"
GYM = (
    "gym env_id=soak_environment:Soak-v0 algo=sac sac.hidden=64,64 sac.fused=false off_policy.num_envs=2 "
    "learning_starts=40 num_workers=1 supervise=false --trust"
)
SNAKES = "snakes algo=ddpg ddpg.hidden=32 off_policy.num_envs=4 global_batch_size=32 learning_starts=40"
RUNS = {
    "snakes": (SNAKES, "env_steps", 2000),
    "uav": (
        "uav algo=coma variant=smoke on_policy.num_envs=3 budget=4 minibatch_rows=25",
        "env_steps",
        2000,
    ),
    "gym": (GYM, "env_steps", 1500),
    "metaworld": (
        "metaworld variant=smoke backend=workers num_workers=0 sac.fused=false learning_starts=60 random_steps=60 "
        "collect.interval=100000000 collect.samples=40 final_episodes=0 horizon=30 update_interval=1 "
        "project={folder}",
        "env_steps",
        1500,
    ),
    "sketchnav": ("sketchnav variant=smoke", "env_steps", 1000),
    "libero": ("libero variant=smoke demos_dir={data} max_steps=10 eval_interval=0", "updates", 200),
    "snakes on two ranks": (f"{SNAKES} nproc=2", "env_steps", 2000),
}
"""Name -> command line of a run of some seconds, the option that sets its length, and the length."""
BY_CLOCK = (
    "elapsed_s",
    "interval_s",
    "evaluation_s",
    "evaluated_at_s",
    "/metrics",
    "shared/run/logged",
    "noise/rdt/sample",
)
"""Parts of a state that depend on seconds: clocks, the means since the last log line, and the counter of the noise of
libero's evaluations, which run at each checkpoint."""


def command_line(name: str, run: Path, data: Path, length: float, *words: str) -> list[str]:
    """Arguments after ``powerband`` of a new run.

    Args:
        name: Key of `RUNS`.
        run: Its run folder.
        data: Folder of demonstrations.
        length: Length of the run in units of that in `RUNS`.
        words: Further words.
    """
    text, option, count = RUNS[name]
    given = f"{text} {COMMON}".format(folder=run, data=data).split()
    return ["train", *given, f"{option}={round(count * length)}", f"run_dir={run}", *words]


def resume_line(name: str, run: Path, *words: str) -> list[str]:
    """Arguments after ``powerband`` that continue a run."""
    given = RUNS[name][0].split()
    kept = [word for word in given if word == "--trust" or word.startswith("nproc=")]
    return ["train", given[0], f"resume={run}", *kept, *words]


class Child:
    """A command of powerband in a forked process, whose output goes to a log.

    Args:
        words: Arguments after ``powerband``.
        log: File for its output, which is appended.
        prepare: Called in the process before the command.
    """

    def __init__(self, words: list[str], log: Path, prepare: Callable[[], object] = lambda: None) -> None:
        self.log, self.began, self.status = log, time.monotonic(), None
        self.start = log.stat().st_size if log.exists() else 0
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            prepare()
            status = cli(words)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)

    status: int | None
    """Exit status, negative after a signal; None while the process runs."""

    def ended(self) -> bool:
        """True once the process has ended; sets `status`."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def wait(self, seconds: float = 600.0) -> int:
        """Waits for the end and returns the exit status. A process that does not end is killed, and gives -9."""
        deadline = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.002)
        assert self.status is not None
        return self.status

    def kill(self) -> None:
        """Kills the process and all that it has started."""
        for pid in process_tree(self.pid):
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)

    def printed(self) -> str:
        """What it has printed."""
        with self.log.open("rb") as file:
            file.seek(self.start)
            return file.read().decode(errors="replace")


def ranks(run: Path) -> list[tuple[int, int | None]]:
    """(process, start ticks) of the ranks of a run that live; empty before its loop begins."""
    listed = read_object(run / "processes.json").get("ranks")
    found = [(rank["pid"], rank["began"]) for rank in listed] if isinstance(listed, list) else []
    return [(pid, began) for pid, began in found if process_start_ticks(pid) == began]


def newest(run: Path) -> int:
    """Returns the step of the newest undamaged checkpoint; -1 without one."""
    try:
        return int(resolve_resume(str(run))[0].name)
    except (CheckpointError, ValueError, OSError):
        return -1


def saved_at(run: Path) -> float | None:
    """Time at which the newest undamaged checkpoint was complete, in seconds since the epoch; None without one."""
    step = newest(run)
    return None if step < 0 else (run / "checkpoints" / str(step) / "manifest.json").stat().st_mtime


def final_state(run: Path) -> dict[str, Any]:
    """Returns the leaves of the newest checkpoint by path, without those that depend on seconds."""
    path, _ = resolve_resume(str(run))
    shards = sorted(file.stem for file in path.glob("*.safetensors"))
    leaves = (leaf for shard in shards for leaf in runs.leaves(load_checkpoint(path, shard)[0], shard))
    return {name: value for name, value in leaves if not any(part in name for part in BY_CLOCK)}


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Returns the paths at which two states differ in any bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        return type(a) is type(b) and bool(np.array_equal(a, b, equal_nan=isinstance(a, float)))

    return sorted(name for name in first.keys() | second.keys() if not equal(first.get(name), second.get(name)))
