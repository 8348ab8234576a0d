"""How long a diffusion policy of sketchnav takes to draw a chunk, and how often it arrives, by steps of the sampler.

python benchmarks/sketchnav_diffusion.py runs/NAME --json benchmarks/results/sketchnav_diffusion.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.config import from_json
from powerband.core.device import host_facts
from powerband.core.precision import Precision
from powerband.recipes import sketchnav
from powerband.recipes.sketchnav_score import policy_of, summary, walk
from powerband.recipes.sketchnav_sets import episodes_of

STEPS, ROWS = (4, 10, 20), (1, 32)
REPEATS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--samplers", nargs="+", default=["ddim", "dpm"])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    config = from_json(sketchnav.Config, (given.run / "config.json").read_text())
    saved = load_checkpoint(resolve_resume(str(given.run))[0], "shared")[0]["learner"]
    episodes = episodes_of(config, "val_unseen")
    rows = []
    for sampler in given.samplers:
        for steps in STEPS:
            turned = replace(config, chunks=replace(config.chunks, sampler=sampler, sample_steps=steps))
            learner, spec, _ = sketchnav.networks(turned, "cpu", Precision("fp32"))
            learner.load_state_dict(saved)
            act, carry = policy_of("policy", learner, episodes)
            row = {"sampler": sampler, "steps": steps}
            for count in ROWS:
                row[f"ms_{count}"] = 1e3 * seconds_of(learner, spec, count)
            row |= summary(walk(episodes, turned, act, carry, count=given.episodes))
            rows.append(row)
            print(f"{sampler} {steps:>3}: {row['ms_1']:.1f} ms a chunk, success {row['success']:.3f}", flush=True)
    if given.json:
        found = {"host": host_facts(), "threads": given.threads, "horizon": config.chunks.horizon, "rows": rows}
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def seconds_of(learner, spec, rows: int) -> float:
    """Median seconds of one call for so many rows, observation encoded and chunk drawn."""
    obs = {name: leaf.zeros(rows) for name, leaf in spec.obs.items()}
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        learner.act(obs, None, explore=False)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
