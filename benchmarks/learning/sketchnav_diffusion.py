"""Time per action chunk and success rate of a sketchnav diffusion policy, by sampler and number of sampling steps.

python benchmarks/learning/sketchnav_diffusion.py runs/NAME --json benchmarks/results/learning/sketchnav_diffusion.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from powerband.core.config import from_json
from powerband.core.machine.device import host_facts
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume
from powerband.data.types import EnvSpec
from powerband.recipes.sketchnav import RECIPE
from powerband.recipes.sketchnav.evaluation.evaluate import run_episodes, summary
from powerband.recipes.sketchnav.learners import build_learner
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes
from powerband.recipes.sketchnav.policies import NavigationLearner, named_policy

STEPS, ROWS = (4, 10, 20), (1, 32)
REPEATS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="run folder of a diffusion policy")
    parser.add_argument("--samplers", nargs="+", default=["ddim", "dpm"])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    file = options.run / "config.json"
    config = from_json(RECIPE.Config, file.read_text(), str(file), RECIPE.old_names)
    state = load_checkpoint(resolve_resume(str(options.run))[0], "shared")[0]["learner"]
    episodes = load_episodes(config, "val_unseen")
    rows = []
    for sampler in options.samplers:
        for steps in STEPS:
            variant = replace(config, chunks=replace(config.chunks, sampler=sampler, sample_steps=steps))
            learner, spec, _ = build_learner(variant, RankContext.single())
            learner.load_state_dict(state)
            act, carry = named_policy("policy", learner, episodes)
            row: dict[str, Any] = {"sampler": sampler, "steps": steps}
            for count in ROWS:
                row[f"ms_{count}"] = 1e3 * median_seconds(learner, spec, count)
            row |= summary(run_episodes(episodes, variant, act, carry, count=options.episodes))
            rows.append(row)
            print(f"{sampler} {steps:>3}: {row['ms_1']:.1f} ms per chunk, success {row['success']:.3f}", flush=True)
    if options.json:
        result = {"host": host_facts(), "threads": options.threads, "horizon": config.chunks.horizon, "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def median_seconds(learner: NavigationLearner, spec: EnvSpec, rows: int) -> float:
    """Returns the median seconds of one call of `act` with `rows` observations, including their encoding."""
    obs = {name: leaf.zeros(rows) for name, leaf in spec.obs.items()}
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        learner.act(obs, learner.initial_carry(rows), explore=False)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
