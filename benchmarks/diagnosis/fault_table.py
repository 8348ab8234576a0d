"""Table of the fault suite (`faults.py`): each fault with its training loop, its injection and its near-miss."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import faulty_envs as envs
from powerband.data.recorded.recording import Recording

DDPG = ["snakes", "algo=ddpg", "gpus=none"]
PPO = ["snakes", "algo=ppo", "gpus=none", "on_policy.num_envs=64"]
SAC = ["gym", "algo=sac", "gpus=none", "num_workers=2"]
SAC_RANKS = ["gym", "algo=sac", "gpus=none", "num_workers=1"]
Injection = Callable[[], contextlib.AbstractContextManager]
"""Function that returns a context manager, in which the fault is active."""


@dataclass(frozen=True)
class Fault:
    """One injected bottleneck on one loop.

    Attributes:
        name: Name of the fault.
        loop: Name of the training loop.
        expected: Cause that the diagnosis should report first.
        arguments: Command line of the faulty run.
        near_miss_arguments: Command line of the near-miss.
        inject: Context manager that injects the fault.
        near_miss_inject: Context manager that injects the near-miss.
        ranks: Number of ranks; with more than 1, the run starts through the command line.
        useless_option: Option for which the advice must predict no gain; "" for none.
    """

    name: str
    loop: str
    expected: str
    arguments: list[str]
    near_miss_arguments: list[str]
    inject: Injection = contextlib.nullcontext
    near_miss_inject: Injection = contextlib.nullcontext
    ranks: int = 1
    useless_option: str = ""


def env_cost(milliseconds: float) -> Injection:
    """Returns an injection of the cost per step of faulty environments; a new token file selects the slow one."""

    @contextlib.contextmanager
    def inject() -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {envs.COST_MS: str(milliseconds), envs.TOKEN: f"{folder}/token"}
            try:
                yield
            finally:
                del os.environ[envs.COST_MS], os.environ[envs.TOKEN]

    return inject


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces the attribute `owner.name` by a wrapped version while the block runs."""
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def slow_boards(milliseconds: float) -> Injection:
    """Returns an injection that adds milliseconds to each step of the snakes environments."""
    from powerband.recipes.snakes.env.env import SnakesEnv

    def wrap(recv: Any) -> Any:
        def slow(env: Any) -> Any:
            time.sleep(milliseconds / 1e3)
            return recv(env)

        return slow

    return lambda: replaced(SnakesEnv, "recv", wrap)


def conversions(learner: type, count: int, milliseconds: float = 0.0) -> Injection:
    """Returns an injection of `count` host-device synchronisations (`Tensor.item`) per update of a learner class.

    With `milliseconds` > 0, every synchronisation takes that additional time, as on a busy device.
    """

    @contextlib.contextmanager
    def inject() -> Iterator[None]:
        def wrap_item(item: Any) -> Any:
            def slow(tensor: Any) -> Any:
                time.sleep(milliseconds / 1e3)
                return item(tensor)

            return slow

        def wrap_update(update: Any) -> Any:
            def update_and_convert(self: Any, batch: Any) -> Any:
                losses = update(self, batch)
                for _ in range(count):
                    next(iter(losses.values())).item()
                return losses

            return update_and_convert

        slow_item = replaced(torch.Tensor, "item", wrap_item) if milliseconds else contextlib.nullcontext()
        with slow_item, replaced(learner, "update", wrap_update):
            yield

    return inject


def slow_frames(milliseconds: float) -> Injection:
    """Returns an injection that adds milliseconds per camera to reading the images of a batch from two cameras."""
    from powerband.data.robot.frames import FrameCache

    def wrap(gather: Any) -> Any:
        def slow(*arguments: Any) -> Any:
            time.sleep(milliseconds / 1e3)
            return gather(*arguments)

        return slow

    return lambda: replaced(FrameCache, "gather", wrap)


def synthetic_demonstrations() -> str:
    """Writes two random episodes of a robot arm and returns their folder, which is removed at exit."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sizes = {"joints": 7, "gripper": 2, "eef_pos": 3, "eef_quat": 4, "action": 7}
    recording = Recording(Path(folder) / "demos" / "task", {"instruction": "close the drawer", "hz": 20.0})
    for number in range(2):
        fields = {name: torch.rand(40, size) for name, size in sizes.items()}
        frames = {name: torch.randint(256, (40, 64, 64, 3), dtype=torch.uint8) for name in ("agentview", "wrist")}
        recording.add(number, {**fields, **frames})
    return f"{folder}/demos"


def figure_at_each_log() -> contextlib.AbstractContextManager:
    """Writes a figure with each log line, as many scripts do."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from powerband.core.telemetry.metrics import JsonlSink

    def wrap(write: Any) -> Any:
        def drawing(sink: Any, line: dict) -> None:
            write(sink, line)
            figure, axes = plt.subplots()
            axes.plot([value for value in line.values() if isinstance(value, float)])
            figure.savefig(sink.path.with_suffix(".png"))
            plt.close(figure)

        return drawing

    return replaced(JsonlSink, "write", wrap)


def faults(draw: int = 0) -> list[Fault]:
    """Returns the table; `draw` is the seed of random factors on the doses, and 0 uses the doses as written."""
    chance = random.Random(draw)

    def dose(value: float) -> float:
        return value * math.exp(chance.uniform(math.log(0.7), math.log(1.5))) if draw else value

    def integer(setting: str, value: int) -> str:
        return f"{setting}={max(1, round(dose(value)))}"

    from powerband.algos.ddpg import DDPG as DDPGLearner
    from powerband.algos.sac import SAC as SACLearner

    slow, straggler = "env_id=faulty_envs:SlowPendulum-v0", "env_id=faulty_envs:StragglerPendulum-v0"
    rendered, late = "env_id=faulty_envs:SoftwareRendered-v0", "env_id=faulty_envs:StragglerRank-v0"
    few = ["updates_per_interval=1", integer("update_interval", 16)]
    rare = ["updates_per_interval=1", integer("update_interval", 200)]
    threads = 16 * (os.cpu_count() or 1)
    arm = ["libero", "variant=tiny", "gpus=none", "threads=1", "pixels=64", "global_batch_size=8"]
    arm.append(f"demos_dir={synthetic_demonstrations()}")
    navigation = ["sketchnav", "variant=small", "renderer=mujoco", "num_workers=2", "gpus=none", "scenes.plans=8"]
    navigation += ["on_policy.num_envs=8", "num_steps=8", "minibatches=1"]
    return [
        Fault("slow env", "snakes/ddpg", "env-bound", [*DDPG, *few], DDPG, slow_boards(dose(40)), slow_boards(dose(1))),
        Fault("slow env", "snakes/ppo", "env-bound", PPO, PPO, slow_boards(dose(20)), slow_boards(dose(0.5))),
        Fault(
            "slow env", "gym/sac", "env-bound", [*SAC, slow, *few], [*SAC, slow], env_cost(dose(40)), env_cost(dose(1))
        ),
        Fault(
            "straggler env", "gym/sac", "env-straggler",
            [*SAC, straggler, *few], [*SAC, straggler], env_cost(dose(40)), env_cost(dose(1)),
        ),
        Fault("tiny batch", "snakes/ddpg", "small-batch", [*DDPG, integer("global_batch_size", 4)], DDPG),
        Fault("tiny batch", "snakes/ppo", "small-batch", [*PPO, "minibatches=256"], PPO),
        Fault("tiny batch", "gym/sac", "small-batch", [*SAC, integer("global_batch_size", 4)], SAC),
        Fault(
            "item", "snakes/ddpg", "host-sync",
            DDPG, DDPG, conversions(DDPGLearner, 20, dose(2.0)), conversions(DDPGLearner, 1),
        ),
        Fault(
            "item", "gym/sac", "host-sync",
            SAC, SAC, conversions(SACLearner, 20, dose(2.0)), conversions(SACLearner, 1),
        ),
        Fault(
            "update interval", "snakes/ddpg", "update-bound",
            [*DDPG, integer("update_interval", 10)], [*DDPG, *rare], useless_option="update_interval",
        ),
        Fault(
            "update interval", "gym/sac", "update-bound",
            [*SAC, integer("update_interval", 10)], [*SAC, *rare], useless_option="update_interval",
        ),
        Fault(
            "rank-0 eval", "snakes/ddpg", "eval-blocking",
            [*DDPG, "off_policy.num_envs=2", integer("eval_interval", 40), "eval_games=20"],
            [*DDPG, "off_policy.num_envs=2", integer("eval_interval", 100000)], ranks=2,
        ),
        Fault(
            "rank-0 eval", "gym/sac", "eval-blocking",
            [*SAC_RANKS, integer("eval_interval", 20)], [*SAC_RANKS, integer("eval_interval", 100000)], ranks=2,
        ),
        Fault(
            "log and figures", "snakes/ddpg", "log-blocking",
            [*DDPG, "log_interval=1"], [*DDPG, "log_interval_s=5"], figure_at_each_log, figure_at_each_log,
        ),
        Fault(
            "log and figures", "gym/sac", "log-blocking",
            [*SAC, "log_interval=4"], [*SAC, "log_interval_s=5"], figure_at_each_log, figure_at_each_log,
        ),
        Fault(
            "checkpoint", "snakes/ddpg", "save-blocking",
            [*DDPG, "save_interval=1"], [*DDPG, integer("save_interval", 2000)],
        ),
        Fault(
            "checkpoint", "snakes/ppo", "save-blocking",
            [*PPO, "num_steps=4", "minibatches=1", "epochs=1", "save_interval=1"],
            [*PPO, integer("save_interval", 200000)],
        ),
        Fault(
            "checkpoint", "gym/sac", "save-blocking",
            [*SAC, "save_interval=4"], [*SAC, integer("save_interval", 2000)],
        ),
        Fault(
            "software rendering", "gym/sac", "software-rendering",
            [*SAC, rendered, *few], [*SAC, rendered], env_cost(dose(15)), env_cost(dose(0.2)),
        ),
        Fault(
            "straggler rank", "gym/sac", "rank-straggler",
            [*SAC_RANKS, late], [*SAC_RANKS, late], env_cost(dose(60)), env_cost(dose(0.1)), ranks=2,
        ),
        Fault("slow loader", "libero", "data-wait", arm, arm, slow_frames(dose(60)), slow_frames(dose(1))),
        Fault(
            "software rendering", "sketchnav", "software-rendering",
            [*navigation, "epochs=1"], [*navigation, integer("epochs", 12)],
        ),
        Fault("threads", "snakes/ddpg", "thread-oversubscription", [*DDPG, f"threads={threads}"], DDPG),
        Fault("threads", "gym/sac", "thread-oversubscription", [*SAC, f"threads={threads}"], SAC),
    ]  # fmt: skip
