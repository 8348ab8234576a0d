"""Training rate with evaluations at the default cadence, compared with the rate without any, per recipe.

    python benchmarks/training/eval_cost.py [gym snakes uav] [--seconds S] [--every S] [--out FILE]

With the defaults it takes about 11 minutes on an idle machine. Two cases are measured for each recipe, with one CPU
thread for the training:

- free core: the evaluations run in a process of their own, and the training may use all cores of this process.
- no free core: the training is pinned to one core, and evaluates itself.

Two runs one after the other differ by more than an evaluation costs. Each case is therefore one run that evaluates
every S seconds (``--every``), and each evaluation is compared with the quiet seconds before and after it: it has cost
the time since its start minus the time in which the quiet rate makes the same steps. Its window ends a second after the
evaluation, so that cold caches count. The first evaluation, which starts the process and compiles, is left out and
reported as ``first_s``.

The ratio is that of the default cadence: a checkpoint is evaluated every 120 s, or so rarely that evaluations take 2 %
of the time in the training process. It is the median over the evaluations, with the quartiles. ``busy`` is the rate
during an evaluation in the other process over the quiet rate: the ratio of a run that never stops evaluating.

On a busy machine wall times say little. The same figures from the processor time of the training thread
(``ratio_cpu``, ``busy_cpu``) do not count the time in which the thread was not scheduled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

COMMON = (
    "gpus=none threads=1 tensorboard=false env_steps=1000000000000 save_interval_s=0 log_interval_s=1e6 eval_share=0"
)
RECIPES = {
    "gym": "variant=pendulum",
    "snakes": "num_envs=64",
    "uav": "on_policy.num_envs=8 coma.width=16",
}
"""Recipe -> settings of its training, whose iterations are short compared with a second."""
CASES = {"free core": "on", "no free core": "off"}
"""Case -> eval_process."""
AFTER_S = 1.0
"""Seconds after an evaluation that belong to it."""
CADENCE_S, SHARE = 120.0, 0.02
"""Defaults of save_interval_s and eval_share."""


class Tick(NamedTuple):
    """State of the run at the end of an iteration: wall clock and CPU seconds of the training thread, steps, phase."""

    wall: float
    cpu: float
    steps: int
    evaluation: int
    """Number of the evaluation that was under way in this iteration, from 1; 0 if none was."""


class Observer:
    """Run observer that records the iterations of a run.

    Args:
        inside: Whether the training process evaluates.
    """

    def __init__(self, inside: bool) -> None:
        self.inside, self.ticks, self._evaluation = inside, [], 0
        self._active, self._evaluation_s = False, 0.0

    def on_tick(self, run: Any) -> None:
        """Records the end of an iteration."""
        if self.inside:  # the evaluation took place in this iteration
            active = run.journal.evaluation_s > self._evaluation_s
            self._evaluation_s = run.journal.evaluation_s
            self._evaluation += active
        else:
            active = (run.dir / "checkpoints" / "evaluating").exists()
            self._evaluation += active and not self._active
            self._active = active
        number = self._evaluation if active and run.grad_steps else 0
        self.ticks.append(Tick(time.perf_counter(), time.thread_time(), run.env_steps, number))

    def on_batch(self, batch: Any) -> None:
        """Records nothing."""

    def on_average(self, flat: Any) -> None:
        """Records nothing."""


class Cost(NamedTuple):
    """What one evaluation cost the training."""

    seconds: float
    """Duration of the evaluation."""
    lost_s: float
    """Seconds in which the quiet rate makes the steps that the evaluation prevented."""
    busy: float
    """Rate during the evaluation over the quiet rate."""


def costs(ticks: list[Tick], clock: str, inside: bool) -> list[Cost]:
    """Compares each evaluation but the first with the quiet time before and after it.

    Args:
        ticks: Iterations of one run.
        clock: ``wall`` or ``cpu``.
        inside: Whether the training process evaluates.
    """
    last = max((tick.evaluation for tick in ticks), default=0)
    windows = []  # (first tick before the evaluation, its last tick, last tick of its window)
    for number in range(1, last + 1):
        own = [index for index, tick in enumerate(ticks) if tick.evaluation == number]
        if not own or own[0] == 0:
            continue
        # In another process, the iteration that submits the checkpoint has written it, too, which is not counted: the
        # default cadence evaluates checkpoints that are written anyway.
        begin = own[0] - 1 if inside else own[0]
        end = own[-1]
        after = next((i for i in range(end, len(ticks)) if ticks[i].wall >= ticks[end].wall + AFTER_S), None)
        if after is not None:
            windows.append((begin, end, after))
    found = []
    for before, own, following in zip(windows, windows[1:], [*windows[2:], None], strict=False):
        quiet = [(before[2], own[0] if inside else own[0] - 1)]
        quiet.append((own[2], (following[0] if inside else following[0] - 1) if following else len(ticks) - 1))
        steps = sum(ticks[end].steps - ticks[begin].steps for begin, end in quiet if end > begin)
        seconds = sum(getattr(ticks[end], clock) - getattr(ticks[begin], clock) for begin, end in quiet if end > begin)
        if not steps or not seconds:
            continue
        rate = steps / seconds

        def spent(first: int, final: int) -> tuple[float, int]:
            one, two = ticks[first], ticks[final]
            return getattr(two, clock) - getattr(one, clock), two.steps - one.steps

        duration, done = spent(own[0], own[1])
        window, window_steps = spent(own[0], own[2])
        busy = done / duration / rate if duration else 1.0
        found.append(Cost(duration, window - window_steps / rate, busy))
    return found


def ratios(found: list[Cost], inside: bool) -> list[float]:
    """The rate at the default cadence over the rate without evaluations, from each evaluation."""
    if inside:  # the interval is one of training time, to which the evaluation is added
        intervals = [max(CADENCE_S, each.seconds / SHARE) for each in found]
        return [interval / (interval + each.lost_s) for interval, each in zip(intervals, found, strict=True)]
    return [1 - each.lost_s / max(CADENCE_S, each.seconds) for each in found]


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles, rounded."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


def trace(recipe: str, case: str, seconds: float, every: float) -> list[Tick]:
    """Trains once in this process, and returns its iterations."""
    from powerband.cli.catalogue import configure
    from powerband.core.run.run import Run

    inside = CASES[case] == "off"
    if inside:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    observer = Observer(inside)
    with tempfile.TemporaryDirectory() as folder:
        words = [*COMMON.split(), *RECIPES[recipe].split(), f"eval_process={CASES[case]}", f"run_dir={folder}/run"]
        words += [f"time_limit_s={seconds}", f"eval_interval_s={every}"]
        found, stage, resolved = configure(recipe, words)
        with Run.start(
            resolved.config, recipe=recipe, stage=stage, argv=[], observer=observer, score=found.score
        ) as run:
            found.run_stage(stage, run.config, run)
    return observer.ticks


def measure(recipe: str, case: str, seconds: float, every: float) -> dict[str, Any]:
    """Measures one case of a recipe in a process of its own; returns a row of the results."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ticks.json"
        options = [recipe, "--case", case, "--seconds", str(seconds), "--every", str(every), "--ticks", str(file)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        subprocess.run([sys.executable, __file__, *options], check=True, stdout=subprocess.DEVNULL, env=environment)
        ticks = [Tick(*values) for values in json.loads(file.read_text())]
    inside = CASES[case] == "off"
    wall, cpu = costs(ticks, "wall", inside), costs(ticks, "cpu", inside)
    row: dict[str, Any] = {"recipe": recipe, "case": case, "load": round(load, 1), "evaluations": len(wall)}
    own = [tick for tick in ticks if tick.evaluation == 1]
    if own:
        row["first_s"] = round(own[-1].wall - ticks[max(ticks.index(own[0]) - 1, 0)].wall, 2)
    if not wall or not cpu:
        return {**row, "error": f"fewer than two evaluations in {seconds:g} s. Raise --seconds or lower --every."}
    row["evaluation_s"] = round(statistics.median(each.seconds for each in wall), 2)
    row["lost_s"] = round(statistics.median(each.lost_s for each in wall), 3)
    row |= {"ratio": spread(ratios(wall, inside)), "ratio_cpu": spread(ratios(cpu, inside))}
    if not inside:
        row |= {"busy": spread([each.busy for each in wall]), "busy_cpu": spread([each.busy for each in cpu])}
    return row


def main() -> None:
    """Measures the named recipes, or all, and prints a row per recipe and case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*RECIPES, []], help=f"recipes: {', '.join(RECIPES)}")
    parser.add_argument("--seconds", type=float, default=95.0, help="seconds of training per case")
    parser.add_argument("--every", type=float, default=10.0, help="seconds of training between two evaluations")
    parser.add_argument("--out", default="")
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--ticks", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ticks:
        ticks = trace(options.names[0], options.case, options.seconds, options.every)
        Path(options.ticks).write_text(json.dumps(ticks))
        return
    rows = []
    for recipe in options.names or RECIPES:
        for case in CASES:
            rows.append(measure(recipe, case, options.seconds, options.every))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                Path(options.out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
