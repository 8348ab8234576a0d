"""What moments of Adam below 1e-38 cost on a CPU: updates of a trained expert of Meta-World, with and without tidying.

Both cases begin with the same run's networks and replay. After some updates the moments of units that no longer fire
have shrunk to numbers that a CPU computes slowly, unless they became 0 before.

    powerband train metaworld expert task=window-open variant=cpu run_dir=runs/window-open
    python benchmarks/denormals.py runs/window-open --json benchmarks/results/denormals.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from powerband.core import flat
from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.config import from_json
from powerband.core.device import host_facts, keep_memory, set_threads
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec
from powerband.recipes import metaworld

SHRINK, TIMED = 1_500, 300
NEVER = 2**62


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    keep_memory()
    set_threads(1, 1)
    config = metaworld.settle(from_json(metaworld.Config, (given.run / "config.json").read_text()), "expert")
    saved = resolve_resume(str(given.run))[0]
    parts = {**load_checkpoint(saved, "shared")[0], **load_checkpoint(saved, "rank0")[0]}
    learner, spec, sizes = metaworld.networks(config, "cpu", Precision(config.run.precision))
    single = {"reward": TensorSpec(()), "terminated": TensorSpec((), torch.bool)}
    replay = Replay(
        int(parts["replay"]["capacity"]),
        sizes.num_envs,
        "cpu",
        {"obs": spec.obs, "action": spec.action, "reward": single["reward"], "terminated": single["terminated"],
         "next_obs": spec.obs},
    )  # fmt: skip
    replay.load_state_dict(parts["replay"])
    noise = NoiseSource(0)("replay", sizes.global_batch_size)
    cases = {"left": NEVER, "tidied": flat.TIDY_EVERY}
    rows: dict[str, list[dict]] = {name: [] for name in cases}
    for _ in range(given.rounds):
        for name, every in cases.items():
            flat.TIDY_EVERY = every
            learner.load_state_dict(parts["learner"])
            for _ in range(SHRINK):
                learner.update(replay.sample(sizes.global_batch_size, noise))
            rows[name].append(timed(learner, replay, sizes.global_batch_size, noise))
            print(name, rows[name][-1], flush=True)
    medians = {
        name: {what: statistics.median(row[what] for row in rounds) for what in rounds[0]}
        for name, rounds in rows.items()
    }
    ratio = medians["left"]["update_ms"] / medians["tidied"]["update_ms"]
    print(medians, f"{ratio:.2f}x")
    if given.json:
        found = {"host": host_facts(), "threads": 1, "task": config.task, "env_steps": saved.name}
        found |= {"medians": medians, "faster": ratio, "rounds": rows}
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def timed(learner, replay: Replay, batch: int, noise) -> dict[str, float]:
    """Milliseconds of an update and of its two optimisers, and the share of moments below the smallest normal."""
    optimisers = (learner.actor_adam.adam, learner.critic_adam.adam)
    start = time.perf_counter()
    for _ in range(TIMED):
        learner.update(replay.sample(batch, noise))
    update = time.perf_counter() - start
    moments = torch.cat([adam.state[name] for adam in optimisers for name in ("exp_avg", "exp_avg_sq")]).abs()
    share = float(((moments > 0) & (moments < torch.finfo(torch.float32).tiny)).float().mean())
    start = time.perf_counter()
    for _ in range(TIMED):
        for adam in optimisers:
            adam.step()  # with the last gradients again
    step = time.perf_counter() - start
    return {"update_ms": 1e3 * update / TIMED, "optimisers_ms": 1e3 * step / TIMED, "share_denormal": share}


if __name__ == "__main__":
    main()
