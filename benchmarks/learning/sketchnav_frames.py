"""Error of the goal that is measured on a sketch, with one size for all pages and with learned frames.

    python benchmarks/learning/sketchnav_frames.py [smooth abstract] [--epochs 8] [--json FILE]

The page encoder of `variant=small` and the layer of `net.align_page` are trained alone, on the 8,000 sketches of the
training plans and the true positions of their goals. The error is that of the 1,000 episodes of `val_unseen`, whose
plans are others. A training of the policy adds further losses to the same network, so its error differs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

from powerband.cli.catalogue import configure
from powerband.core.machine.device import host_facts
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.learners import build_encoder
from powerband.recipes.sketchnav.nets.sketch_net import SketchNet
from powerband.recipes.sketchnav.nets.sketch_view import in_metres
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes

LEVELS = ("smooth", "abstract")
RATE, BATCH = 1e-3, 64


def drawn_goals(net: SketchNet, episode: Tensor) -> Tensor:
    """Returns the positions (n, 2) of the goals in metres from the start, as measured on the pages of n episodes."""
    codes = net.sketch(episode)[0]
    offset = net.sketch.goals.index_select(0, episode) - net.sketch.starts.index_select(0, episode)
    return in_metres(net.frame(codes), offset)


def error_of(net: SketchNet, true: Tensor) -> dict[str, float]:
    """Returns the median and mean error in metres, and the share of the episodes with an error below 1 m."""
    with torch.no_grad():
        parts = torch.arange(len(true)).split(500)
        error = (torch.cat([drawn_goals(net, part) for part in parts]) - true).norm(dim=1)
    share = float((error < 1).float().mean())
    return {"median_m": float(error.median()), "mean_m": float(error.mean()), "below_1_m": share}


def measure(config: Config, epochs: int) -> list[dict[str, float]]:
    """Trains the frames for some epochs; returns the errors on unseen plans before the first and after each epoch."""
    train, unseen = load_episodes(config, "train"), load_episodes(config, "val_unseen")
    goals = [(each.target - each.start[:, :2]).float() * COORDINATE_UNIT_M for each in (train, unseen)]
    torch.manual_seed(0)
    net = build_encoder(config, train.sketch)
    adam = torch.optim.Adam(net.parameters(), RATE)
    rows, began = [], time.perf_counter()
    for epoch in range(epochs + 1):
        if epoch:
            net.sketch.set_sketches(train.sketch)
            for part in torch.randperm(len(train)).split(BATCH):
                loss = (drawn_goals(net, part) - goals[0][part]).square().mean()
                adam.zero_grad()
                loss.backward()
                adam.step()
        net.sketch.set_sketches(unseen.sketch)
        rows.append({"epoch": epoch, "seconds": time.perf_counter() - began, **error_of(net, goals[1])})
        print(config.scenes.sketch, json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measures the levels, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("levels", nargs="*", default=list(LEVELS), help=", ".join(LEVELS))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for level in options.levels:
        words = ["variant=small", "scene_seed=0", f"scenes.sketch={level}", "net.align_page=true"]
        rows[level] = measure(configure("sketchnav", words)[2].config, options.epochs)
    if options.json:
        options.json.write_text(json.dumps({"host": host_facts(), "levels": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
