"""The fault suite: bottlenecks injected into the real loops, and what `powerband profile` says of each.

    python benchmarks/faults.py --json benchmarks/results/faults.json [--only NAME ...] [--pairs 5] [--draw 1]

For every fault: the cause that is named first, the one that should be, and whether the near-miss (the same fault in a
dose that does not bind) is left alone. With --pairs, the best advice is run against the setting as it was, in turns,
and the median of the realised gains is compared with the predicted one.

The thresholds (`src/powerband/tune/causes.py`) were FROZEN before this suite was first run; its results are reported as
they are and no threshold is moved to fit them. After the first run four doses were changed, as they made no such
fault: a rollout of snakes/ppo took longer than half the window, the near-miss of `item` made every question slow, one
environment was asked of two ranks, and gym/sac was evaluated once a window; the probe of an update went from its median
to its lower quartile; and a run no longer handed its threads to the next one, which had made a near-miss a fault. Two
faults are stand-ins: where there is no GPU, asking a tensor for its value is made to cost what it would on a busy
device, and a picture is rasterised by numpy.

``--draw N`` draws every dose, of faults and near-misses, between 0.7 and 1.5 times the written one: a draw that was
never run before judges thresholds and doses alike.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

import faulty_envs as envs
from powerband import PhaseClock, catalogue, diagnose
from powerband.bench.harness import wait_as_runs_do
from powerband.core.device import host_facts
from powerband.data.recording import Recording
from powerband.tune.apart import short_run
from powerband.tune.measure import measure
from powerband.tune.profile import Options, profile

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


# -- injections ---------------------------------------------------------------------------------------------------


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


# -- the table ----------------------------------------------------------------------------------------------------


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


# -- running ------------------------------------------------------------------------------------------------------


def configured(words: list[str]) -> tuple[Any, str, Any]:
    recipe, stage, resolved = catalogue.configure(words[0], words[1:])
    return recipe, stage, resolved.config


def on_ranks(fault: Fault, words: list[str], inject: Injection, seconds: float) -> dict[str, Any]:
    """What the command line says, run with ranks: cause, findings, advice."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with inject(), tempfile.TemporaryDirectory() as folder:
        environment |= {name: os.environ[name] for name in (envs.COST_MS, envs.TOKEN) if name in os.environ}
        report = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "powerband", "profile", *words, f"nproc={fault.ranks}", f"seconds={seconds:g}"]
        done = subprocess.run([*command, f"--json={report}"], env=environment, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError(done.stderr[-2000:])
        return json.loads(report.read_text())


def judged(fault: Fault, near: bool, seconds: float) -> dict[str, Any]:
    """Cause, findings and advice of the fault, or of its near-miss."""
    words, inject = (fault.near_words, fault.near_inject) if near else (fault.words, fault.inject)
    if fault.ranks > 1:
        return on_ranks(fault, words, inject, seconds)
    recipe, stage, config = configured(words)
    with inject():
        if not near:
            return profile(recipe, stage, config, Options(seconds)).to_dict()
        seen = measure(recipe, stage, config, seconds)
        found = diagnose(seen.ledgers, seen.facts[0])
        return {
            "cause": found.cause,
            "sentence": found.sentence,
            "findings": [{"cause": f.cause} for f in found.findings],
        }


def realised(fault: Fault, pairs: int, seconds: float) -> dict[str, Any] | None:
    """The best advice run against the setting as it was, in turns; None where nothing is advised."""
    recipe, stage, config = configured(fault.words)
    with fault.inject():
        best = next((each for each in profile(recipe, stage, config, Options(seconds)).advice if each.gain > 1), None)
    if best is None:
        return None
    gains = []
    for _ in range(pairs):
        rates = []
        for setting in (config, best.config):
            with fault.inject():
                rates.append(short_run(recipe, stage, setting, seconds, probe=False).steps_per_s)
        gains.append(rates[1] / rates[0])
    gain = statistics.median(gains)
    return {"knob": best.knob, "value": best.value, "predicted_gain": best.gain, "realised_gain": gain,
            "pairs": gains, "error": best.gain / gain - 1}  # fmt: skip


def slow_loader(load_s: float, work_s: float) -> str:
    """The stand-in for a recipe with data: a torch DataLoader whose samples are slow to decode, in a plain loop."""

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(load_s)
            return torch.zeros(4)

    clock, batches = PhaseClock(), iter(torch.utils.data.DataLoader(Slow(), batch_size=2))
    clock.restart()
    for _ in range(30):
        with clock("data"):
            next(batches)
        with clock("update"):
            time.sleep(work_s)
    return diagnose(clock).cause


def main() -> None:
    wait_as_runs_do()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--draw", type=int, default=0)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(
            f"{row['fault']:<19}{row['loop']:<12} expected {row['expected']:<24} named {row['named']:<24} "
            f"{'ok   ' if row['right'] else 'WRONG'}  near-miss: {row['near_miss']:<16} "
            f"{'ok' if row['near_miss_left_alone'] else 'FLAGGED'}",
            flush=True,
        )
        if options.json:
            save(options.json, rows, options)

    for fault in faults(options.draw):
        if options.only and fault.name not in options.only:
            continue
        sick, well = judged(fault, False, options.seconds), judged(fault, True, options.seconds)
        useless = {each["knob"] for each in sick["advice"] if each["predicted_gain"] <= 1}
        near = {each["cause"] for each in well["findings"]}
        row = {
            "fault": fault.name,
            "loop": fault.loop,
            "expected": fault.expected,
            "named": sick["cause"],
            "also": [each["cause"] for each in sick["findings"][1:]],
            "sentence": sick["sentence"],
            "right": sick["cause"] == fault.expected and (not fault.advises or fault.advises in useless),
            "near_miss": well["cause"],
            "near_miss_left_alone": fault.expected not in near,
            "remarks": sick["remarks"],
            "advice": sick["advice"][:3],
        }
        if options.pairs and fault.ranks == 1:
            row["applied"] = realised(fault, options.pairs, options.seconds)
            if row["applied"]:
                print(f"    {json.dumps(row['applied'])}", flush=True)
        keep(row)
    if not options.only or "slow loader" in options.only:
        named, near_named = slow_loader(0.01, 0.01), slow_loader(0.0005, 0.02)
        row = {"fault": "slow loader", "loop": "stand-in", "expected": "data-wait", "named": named}
        row |= {"right": named == "data-wait", "near_miss": near_named}
        keep({**row, "near_miss_left_alone": near_named != "data-wait"})


def save(path: Path, rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Writes what is known so far, with the count of faults whose every loop was judged rightly."""
    names = list(dict.fromkeys(row["fault"] for row in rows))
    right = [name for name in names if all(row["right"] for row in rows if row["fault"] == name)]
    spared = [name for name in names if all(row["near_miss_left_alone"] for row in rows if row["fault"] == name)]
    applied = [row["applied"] for row in rows if row.get("applied")]
    result = {
        "host": host_facts(),
        "seconds": options.seconds,
        "draw": options.draw,
        "thresholds": "frozen before the first run of this suite",
        "faults": len(names),
        "named_first": len(right),
        "near_misses_left_alone": len(spared),
        "predictions": len(applied),
        "predictions_within_15_percent": sum(abs(each["error"]) <= 0.15 for each in applied),
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
