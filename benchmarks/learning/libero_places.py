"""Spread of the place of the first grasp over recorded episodes of each task of libero.

A policy without cameras can learn the mean place of a task, which the instruction tells it. The spread says how far off
that is.

    python benchmarks/learning/libero_places.py libero_object=FOLDER libero_spatial=FOLDER \
        --json benchmarks/results/learning/scores/libero-places.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from powerband.data.robot.episodes import RobotEpisodes
from powerband.data.robot.read_episodes import read_episodes


def spreads(episodes: RobotEpisodes) -> dict[str, dict[str, float]]:
    """Returns for each instruction the number of episodes and the standard deviations of the hand's place, in cm.

    The place is the position of the hand when the gripper first closes; x and y are horizontal.
    """
    closes = episodes.action[:, -1] > 0
    places: dict[str, list[torch.Tensor]] = {}
    for episode in episodes.episode.unique():
        rows = (episodes.episode == episode).nonzero()[:, 0]
        closing = rows[closes[rows]]
        if len(closing):
            instruction = episodes.instructions[int(episodes.task[rows[0]])]
            places.setdefault(instruction, []).append(100 * episodes.eef_pos[closing[0]])
    result = {}
    for instruction, found in places.items():
        x, y, _ = torch.stack(found).std(0).tolist()
        result[instruction] = {"episodes": len(found), "std_x_cm": round(x, 2), "std_y_cm": round(y, 2)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recordings", nargs="+", metavar="BENCHMARK=FOLDER", help="demonstrations of a benchmark")
    parser.add_argument("--json", type=Path, required=True, help="file for the results")
    options = parser.parse_args()
    result = {}
    for benchmark, folder in (recording.split("=", 1) for recording in options.recordings):
        result[benchmark] = spreads(read_episodes(Path(folder)))
        for instruction, row in result[benchmark].items():
            print(benchmark, instruction, row, flush=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
