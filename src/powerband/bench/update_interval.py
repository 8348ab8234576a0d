"""Benchmark update-interval: measures the effect of the update interval and of overlap on throughput.

An environment with a fixed step time in its worker process stands in for a game engine. The benchmark measures
each update interval k (k updates every k transitions), serial and overlapped (updates run while environments step),
with several numbers of environments. It reports steps/s, the share of wall time in which the learner computes, and
updates per step.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch

from powerband.algos.sac import SAC
from powerband.algos.settings import SACConfig
from powerband.bench.plot import try_plot
from powerband.bench.slow_envs import make_slow
from powerband.core.config import RunConfig, resolve
from powerband.core.config.ranges import FilePath, Interval, Length, Range, Size, Threads, Widths, check_ranges
from powerband.core.errors import Interrupted
from powerband.core.machine.device import host_facts, set_threads
from powerband.core.run.run import Run
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.loops.config import OffPolicyConfig
from powerband.loops.off_policy import off_policy
from powerband.report.sections.curves import read_metrics

Milliseconds = Annotated[float, Range(at_least=0, at_most=1e6)]


@dataclass(frozen=True)
@check_ranges
class Options:
    """Options of the benchmark update-interval."""

    step_ms: Annotated[tuple[Milliseconds, ...], Length(1)] = (20.0, 80.0)
    """Milliseconds per environment step; the worker sleeps, as if an engine on another machine did the work."""
    intervals: Annotated[tuple[Interval, ...], Length(1)] = (1, 5, 10, 20)
    """Update intervals."""
    num_envs: Annotated[tuple[Size, ...], Length(1)] = (1, 16)
    """Numbers of environments; each environment has one worker process."""
    seconds: Annotated[float, Range(at_least=2, at_most=86_400)] = 8.0
    """Seconds per setting, after the first update."""
    batch: Size = 512
    """Transitions per update."""
    hidden: Widths = (256, 256)
    """Widths of actor and critics; an update with the default takes about 20 ms on two cores."""
    threads: Threads = 0
    """CPU threads of the learner; 0 uses all cores."""
    plot: FilePath = ""
    """PNG file for a plot; empty for none."""


@dataclass(frozen=True)
class _Config:
    """Configuration of the measured run, with the only section that `Run` reads."""

    run: RunConfig = field(default_factory=RunConfig)


def run(arguments: list[str], configure: Any = None) -> dict[str, Any]:
    """Measures training with every combination of step time, environments, interval and overlap, and prints a table.

    Args:
        arguments: Command line after ``powerband bench update-interval``.
        configure: Unused: this benchmark trains no recipe.

    Returns:
        {"host": facts of the machine, "config": options, "update_ms": milliseconds of one update, "rows": one dict per
        combination}. A row has the keys step_ms, num_envs, update_interval, overlap, steps_per_s, learner_busy (share
        of time, 0 to 1), updates_per_step and seconds (duration of the measurement).
    """
    config = resolve(Options, arguments, help_command="powerband bench update-interval").config
    threads = set_threads(config.threads, 1)
    update_ms = _update_ms(config)
    print(f"one update: {update_ms:.1f} ms on {threads} threads, batch {config.batch}", flush=True)
    print(
        f"{'step':>6} {'envs':>5} {'interval':>9} {'mode':>8} {'steps/s':>9} {'learner busy':>13} {'updates/step':>13}"
    )
    rows = []
    for step_ms in config.step_ms:
        for num_envs in config.num_envs:
            for interval in config.intervals:
                for overlap in (False, True):
                    row = _measure(config, step_ms, num_envs, interval, overlap)
                    rows.append(row)
                    mode = "overlap" if overlap else "serial"
                    print(
                        f"{step_ms:>4.0f}ms {num_envs:>5} {interval:>9} {mode:>8} {row['steps_per_s']:>9.1f} "
                        f"{row['learner_busy']:>12.0%} {row['updates_per_step']:>13.3f}",
                        flush=True,
                    )
    host = {"machine": platform.platform(), **host_facts(), "threads": threads}
    result = {"host": host, "config": asdict(config), "update_ms": update_ms, "rows": rows}
    try_plot(lambda: save_plot(result, Path(config.plot)), config.plot)
    return result


def _measure(config: Options, step_ms: float, num_envs: int, interval: int, overlap: bool) -> dict[str, Any]:
    """Trains with one setting in the off-policy loop and returns its row: the setting and its rates.

    The rates are measured from the first updates on. ``learner_busy`` is a share of the time, 0 to 1.
    """
    env = WorkerVecEnv([(make_slow, {"step_ms": step_ms})] * num_envs, num_workers=num_envs)
    learning_starts = 2 * max(config.intervals)
    settings = RunConfig(env_steps=10**9, log_interval_s=0.5, tensorboard=False, overlap=overlap, gpus="auto")
    startup_s = learning_starts / num_envs * step_ms / 1000 + 2
    settings = replace(settings, time_limit_s=startup_s + config.seconds)
    loop = OffPolicyConfig(
        num_envs=num_envs,
        global_batch_size=config.batch,
        replay_size=20_000,
        update_interval=interval,
        learning_starts=learning_starts,
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        settings = replace(settings, run_dir=str(Path(folder) / "run"))
        with Run.start(_Config(settings), recipe="bench", stage="update-interval", argv=[]) as run:
            learner = SAC(env.spec, SACConfig(hidden=config.hidden), run.context)
            off_policy(run, env, learner, loop)
        env.close()
        if run.received_signal:  # the run took over the signal, which ends the benchmark too
            raise Interrupted(run.received_signal)
        lines = read_metrics(Path(folder) / "run")
    start = next(index for index, line in enumerate(lines) if line["grad_steps"] >= interval) + 1
    first, last, window = lines[start - 1], lines[-1], lines[start:]
    seconds, steps = last["time_s"] - first["time_s"], last["env_steps"] - first["env_steps"]
    busy, previous_s = 0.0, first["time_s"]
    for line in window:
        share = sum(line.get(f"perf/share/{name}", 0) for name in ("update", "sample", "act"))
        busy += share * (line["time_s"] - previous_s)
        previous_s = line["time_s"]
    return {
        "step_ms": step_ms,
        "num_envs": num_envs,
        "update_interval": interval,
        "overlap": overlap,
        "steps_per_s": steps / seconds,
        "learner_busy": busy / seconds,
        "updates_per_step": (last["grad_steps"] - first["grad_steps"]) / steps,
        "seconds": seconds,
    }


def _update_ms(config: Options) -> float:
    """Returns the milliseconds of one update without environments, median of 30."""
    from powerband.core.machine.device import device_names
    from powerband.core.rank_context import RankContext

    device = torch.device(device_names(RunConfig())[0])
    env = WorkerVecEnv([(make_slow, {"step_ms": 0.0})], num_workers=0)
    learner = SAC(env.spec, SACConfig(hidden=config.hidden), RankContext.single(device))
    shape = (config.batch,)
    batch = {"obs": torch.randn(*shape, 2), "next_obs": torch.randn(*shape, 2), "action": torch.rand(*shape, 1)}
    batch |= {"reward": torch.randn(shape), "terminated": torch.zeros(shape, dtype=torch.bool)}
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    times = []
    for _ in range(35):
        start = time.perf_counter()
        learner.update(batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[5:])[15] * 1e3


def save_plot(result: dict[str, Any], path: Path) -> None:
    """Draws steps/s and the busy share of the learner over the update interval, and writes them as a PNG.

    Args:
        result: Result of `run`.
        path: PNG file.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["rows"]
    costs = sorted({(row["step_ms"], row["num_envs"]) for row in rows})
    figure, axes = plt.subplots(2, len(costs), figsize=(3.4 * len(costs), 5.4), sharex=True, squeeze=False)
    for column, (step_ms, num_envs) in enumerate(costs):
        for overlap, color in ((False, "#8a8f98"), (True, "#1f6f8b")):
            key = (step_ms, num_envs, overlap)
            series = [row for row in rows if (row["step_ms"], row["num_envs"], row["overlap"]) == key]
            x = [row["update_interval"] for row in series]
            label = "overlap" if overlap else "serial"
            axes[0][column].plot(x, [row["steps_per_s"] for row in series], "o-", color=color, label=label)
            axes[1][column].plot(x, [row["learner_busy"] for row in series], "o-", color=color, label=label)
        axes[0][column].set_title(f"{step_ms:g} ms per step, {num_envs} env", fontsize=9)
        axes[0][column].set_ylim(bottom=0)
        axes[1][column].set_ylim(0, 1)
        axes[1][column].set_xlabel("update interval")
    axes[0][0].set_ylabel("env steps/s")
    axes[1][0].set_ylabel("learner busy, share of time")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    print(json.dumps(run([]), indent=2))
