"""The faults of the fault suite: what makes each bottleneck in which loop, and its near-miss; `faults.py` judges."""

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
from powerband.data.recording import Recording

DDPG = ["snakes", "algo=ddpg", "gpus=none"]
PPO = ["snakes", "algo=ppo", "gpus=none", "on_policy.num_envs=64"]
SAC = ["gym", "algo=sac", "gpus=none", "num_workers=2"]
SAC_RANKS = ["gym", "algo=sac", "gpus=none", "num_workers=1"]
Injection = Callable[[], contextlib.AbstractContextManager]


@dataclass(frozen=True)
class Fault:
    """One injected bottleneck on one loop.

    Attributes:
        name, loop: The fault and the loop that it is put into.
        expected: The cause that should be named first.
        words, near_words: Command line with the fault, and of its near-miss.
        inject, near_inject: What else makes the fault, and the near-miss.
        ranks: Runs through the command line with so many ranks.
        advises: A knob that must be among the advice as useless, "" for none.
    """

    name: str
    loop: str
    expected: str
    words: list[str]
    near_words: list[str]
    inject: Injection = contextlib.nullcontext
    near_inject: Injection = contextlib.nullcontext
    ranks: int = 1
    advises: str = ""


def costing(milliseconds: float) -> Injection:
    """Steps of the faulty environments cost so much; a fresh token says which one is slow."""

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
    """`owner.name` wrapped while the block runs."""
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def slow_boards(milliseconds: float) -> Injection:
    """A step of all snakes boards takes so much longer."""
    from powerband.envs.snakes.env import SnakesEnv

    def wrap(recv: Any) -> Any:
        def slow(env: Any) -> Any:
            time.sleep(milliseconds / 1e3)
            return recv(env)

        return slow

    return lambda: replaced(SnakesEnv, "recv", wrap)


def asking(learner: type, questions: int, milliseconds: float = 0.0) -> Injection:
    """Each update asks for `questions` values; with `milliseconds` an answer takes as long as on a busy device."""

    @contextlib.contextmanager
    def inject() -> Iterator[None]:
        def wrap_item(item: Any) -> Any:
            def slow(tensor: Any) -> Any:
                time.sleep(milliseconds / 1e3)
                return item(tensor)

            return slow

        def wrap_update(update: Any) -> Any:
            def chatty(self: Any, batch: Any) -> Any:
                losses = update(self, batch)
                for _ in range(questions):
                    next(iter(losses.values())).item()
                return losses

            return chatty

        slow_item = replaced(torch.Tensor, "item", wrap_item) if milliseconds else contextlib.nullcontext()
        with slow_item, replaced(learner, "update", wrap_update):
            yield

    return inject


def slow_frames(milliseconds: float) -> Injection:
    """Pictures of a batch take so much longer to read, as from a disk; twice, for the two cameras."""
    from powerband.data.frames import FrameCache

    def wrap(gather: Any) -> Any:
        def slow(*given: Any) -> Any:
            time.sleep(milliseconds / 1e3)
            return gather(*given)

        return slow

    return lambda: replaced(FrameCache, "gather", wrap)


def made_up_demonstrations() -> str:
    """Two recorded episodes of an arm, in a folder that is removed at the end."""
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
    """Every log line also draws and writes a figure, as many scripts do."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from powerband.core.metrics import JsonlSink

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
    """The table; doses as written, or drawn around that where `draw` is above 0."""
    chance = random.Random(draw)

    def dose(value: float) -> float:
        return value * math.exp(chance.uniform(math.log(0.7), math.log(1.5))) if draw else value

    def every(word: str, steps: int) -> str:
        return f"{word}={max(1, round(dose(steps)))}"

    from powerband.algos.ddpg import DDPG as DDPGLearner
    from powerband.algos.sac import SAC as SACLearner

    slow, straggler = "env_id=faulty_envs:SlowPendulum-v0", "env_id=faulty_envs:StragglerPendulum-v0"
    rendered, late = "env_id=faulty_envs:SoftwareRendered-v0", "env_id=faulty_envs:StragglerRank-v0"
    few = ["updates_per_interval=1", every("update_interval", 16)]
    rare = ["updates_per_interval=1", every("update_interval", 200)]
    threads = 16 * (os.cpu_count() or 1)
    arm = ["libero", "variant=tiny", "gpus=none", "threads=1", "pixels=64", "global_batch_size=8"]
    arm.append(f"demos_dir={made_up_demonstrations()}")
    walk = ["sketchnav", "variant=small", "renderer=mujoco", "num_workers=2", "gpus=none", "scenes.plans=8"]
    walk += ["on_policy.num_envs=8", "num_steps=8", "minibatches=1"]
    return [
        Fault("slow env", "snakes/ddpg", "env-bound", [*DDPG, *few], DDPG, slow_boards(dose(40)), slow_boards(dose(1))),
        Fault("slow env", "snakes/ppo", "env-bound", PPO, PPO, slow_boards(dose(20)), slow_boards(dose(0.5))),
        Fault(
            "slow env", "gym/sac", "env-bound", [*SAC, slow, *few], [*SAC, slow], costing(dose(40)), costing(dose(1))
        ),
        Fault(
            "straggler env", "gym/sac", "env-straggler",
            [*SAC, straggler, *few], [*SAC, straggler], costing(dose(40)), costing(dose(1)),
        ),
        Fault("tiny batch", "snakes/ddpg", "small-batch", [*DDPG, every("global_batch_size", 4)], DDPG),
        Fault("tiny batch", "snakes/ppo", "small-batch", [*PPO, "minibatches=256"], PPO),
        Fault("tiny batch", "gym/sac", "small-batch", [*SAC, every("global_batch_size", 4)], SAC),
        Fault(
            "item", "snakes/ddpg", "host-sync", DDPG, DDPG, asking(DDPGLearner, 20, dose(2.0)), asking(DDPGLearner, 1)
        ),
        Fault("item", "gym/sac", "host-sync", SAC, SAC, asking(SACLearner, 20, dose(2.0)), asking(SACLearner, 1)),
        Fault(
            "update interval", "snakes/ddpg", "update-bound",
            [*DDPG, every("update_interval", 10)], [*DDPG, *rare], advises="update_interval",
        ),
        Fault(
            "update interval", "gym/sac", "update-bound",
            [*SAC, every("update_interval", 10)], [*SAC, *rare], advises="update_interval",
        ),
        Fault(
            "rank-0 eval", "snakes/ddpg", "eval-blocking",
            [*DDPG, "off_policy.num_envs=2", every("eval_interval", 40), "eval_games=20"],
            [*DDPG, "off_policy.num_envs=2", every("eval_interval", 100000)], ranks=2,
        ),
        Fault(
            "rank-0 eval", "gym/sac", "eval-blocking",
            [*SAC_RANKS, every("eval_interval", 20)], [*SAC_RANKS, every("eval_interval", 100000)], ranks=2,
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
            [*DDPG, "save_interval=1"], [*DDPG, every("save_interval", 2000)],
        ),
        Fault(
            "checkpoint", "snakes/ppo", "save-blocking",
            [*PPO, "num_steps=4", "minibatches=1", "epochs=1", "save_interval=1"],
            [*PPO, every("save_interval", 200000)],
        ),
        Fault(
            "checkpoint", "gym/sac", "save-blocking",
            [*SAC, "save_interval=4"], [*SAC, every("save_interval", 2000)],
        ),
        Fault(
            "software rendering", "gym/sac", "software-rendering",
            [*SAC, rendered, *few], [*SAC, rendered], costing(dose(15)), costing(dose(0.2)),
        ),
        Fault(
            "straggler rank", "gym/sac", "rank-straggler",
            [*SAC_RANKS, late], [*SAC_RANKS, late], costing(dose(60)), costing(dose(0.1)), ranks=2,
        ),
        Fault("slow loader", "libero", "data-wait", arm, arm, slow_frames(dose(60)), slow_frames(dose(1))),
        Fault(
            "software rendering", "sketchnav", "software-rendering",
            [*walk, "epochs=1"], [*walk, every("epochs", 12)],
        ),
        Fault("threads", "snakes/ddpg", "thread-oversubscription", [*DDPG, f"threads={threads}"], DDPG),
        Fault("threads", "gym/sac", "thread-oversubscription", [*SAC, f"threads={threads}"], SAC),
    ]  # fmt: skip
