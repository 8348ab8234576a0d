"""Update time of a Meta-World expert on a CPU with denormal Adam moments flushed to 0, compared with keeping them.

Both cases start from the networks and the replay buffer of the same run. During the updates, the moments of inactive
units shrink to denormal numbers, which a CPU processes slowly unless they are flushed to 0.

    powerband train metaworld expert task=window-open variant=cpu run_dir=runs/window-open
    python benchmarks/updates/denormals.py runs/window-open --json benchmarks/results/updates/denormals.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from powerband.algos.sac import SAC
from powerband.core.config import from_json
from powerband.core.machine.device import host_facts, keep_freed_memory, set_threads
from powerband.core.optim import flat_adam
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec
from powerband.recipes.metaworld import RECIPE
from powerband.recipes.metaworld.algos.expert import build_learner

SHRINK_UPDATES, TIMED_UPDATES = 1_500, 300
"""Updates before the measurement, and measured updates."""
NEVER = 2**62
"""Interval that no measurement reaches, so moments are not flushed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="run folder of a trained expert")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    keep_freed_memory()
    set_threads(1, 1)
    config = RECIPE.finalized(from_json(RECIPE.Config, (arguments.run / "config.json").read_text()), "expert")
    checkpoint = resolve_resume(str(arguments.run))[0]
    states = {**load_checkpoint(checkpoint, "shared")[0], **load_checkpoint(checkpoint, "rank0")[0]}
    context = RankContext.single(precision=config.run.precision)
    learner, spec, sizes = build_learner(config, context)
    replay = Replay(
        int(states["replay"]["capacity"]),
        sizes.num_envs,
        "cpu",
        {
            "obs": spec.obs,
            "action": spec.action,
            "reward": TensorSpec(()),
            "terminated": TensorSpec((), torch.bool),
            "next_obs": spec.obs,
        },
    )
    replay.load_state_dict(states["replay"])
    noise = context.noise("replay", sizes.global_batch_size)
    cases = {"left": NEVER, "tidied": flat_adam.FLUSH_INTERVAL}
    rows: dict[str, list[dict]] = {name: [] for name in cases}
    for _ in range(arguments.rounds):
        for name, every in cases.items():
            flat_adam.FLUSH_INTERVAL = every
            learner.load_state_dict(states["learner"])
            for _ in range(SHRINK_UPDATES):
                learner.update(replay.sample(sizes.global_batch_size, noise))
            rows[name].append(measure(learner, replay, sizes.global_batch_size, noise))
            print(name, rows[name][-1], flush=True)
    medians = {
        name: {key: statistics.median(row[key] for row in rounds) for key in rounds[0]} for name, rounds in rows.items()
    }
    ratio = medians["left"]["update_ms"] / medians["tidied"]["update_ms"]
    print(medians, f"{ratio:.2f}x")
    if arguments.json:
        result = {"host": host_facts(), "threads": 1, "task": config.task, "env_steps": checkpoint.name}
        result |= {"medians": medians, "faster": ratio, "rounds": rows}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def measure(learner: SAC, replay: Replay, batch: int, noise: Any) -> dict[str, float]:
    """Returns milliseconds per update and per step of both optimisers, and the share of denormal moments."""
    optimisers = (learner.actor_adam.adam, learner.critic_adam.adam)
    start = time.perf_counter()
    for _ in range(TIMED_UPDATES):
        learner.update(replay.sample(batch, noise))
    update = time.perf_counter() - start
    moments = torch.cat([adam.state[name] for adam in optimisers for name in ("exp_avg", "exp_avg_sq")]).abs()
    share = float(((moments > 0) & (moments < torch.finfo(torch.float32).tiny)).float().mean())
    start = time.perf_counter()
    for _ in range(TIMED_UPDATES):
        for adam in optimisers:
            adam.step()  # reuses the last gradients
    step = time.perf_counter() - start
    return {
        "update_ms": 1e3 * update / TIMED_UPDATES,
        "optimisers_ms": 1e3 * step / TIMED_UPDATES,
        "share_denormal": share,
    }


if __name__ == "__main__":
    main()
