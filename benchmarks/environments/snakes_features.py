"""CPU time of the snakes observations, compared with each other and with scripted opponents, in us per snake.

The boards come from games of two greedy teams. The observations are interleaved over several rounds, and each result is
the median CPU time of the process.

    python benchmarks/environments/snakes_features.py --json benchmarks/results/environments/snakes_features.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numba
import torch

from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.kernels import MoveBuffers, move_boards, restart_all, restart_boards
from powerband.recipes.snakes.env.observations import OBSERVATIONS
from powerband.recipes.snakes.env.opponents import GreedyOpponent, RandomOpponent


def played_boards(num_boards: int, moves: int) -> SnakesState:
    """Returns boards on which two greedy teams made `moves` moves."""
    state, buffers = SnakesState.empty(num_boards), MoveBuffers(num_boards, 2 * num_boards, torch.device("cpu"))
    restart_all(state, buffers, seed=1)
    greedy = GreedyOpponent("torus")
    for _ in range(moves):
        for team in range(2):
            buffers.action[team * num_boards : (team + 1) * num_boards] = greedy.act_team(state, slice(None), team)
        move_boards(state, buffers, mirrored=num_boards, relative=False, seed=1, kind=0, threads=1)
        restart_boards(state, buffers, seed=1)
    return state


def measure(num_boards: int, moves: int, rounds: int) -> dict[str, float]:
    """Measures all observations and scripted opponents on boards after `moves` moves.

    Returns:
        Name -> median microseconds of CPU time per snake, and ``mean_length``, the mean length of the snakes.
    """
    state = played_boards(num_boards, moves)
    boards = slice(0, num_boards)
    calls: dict[str, Callable[[], object]] = {}
    for name, observation in OBSERVATIONS.items():
        out = observation.spec.zeros(num_boards)
        calls[name] = lambda observation=observation, out=out: observation.write(state, 0, boards, out)
    for name, opponent in (("greedy", GreedyOpponent()), ("random", RandomOpponent())):
        calls[name] = lambda opponent=opponent: opponent.act_team(state, boards, 1)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append((time.process_time() - start) / (3 * num_boards) * 1e6)
    mean_length = float(state.length.float().mean())
    return {"mean_length": mean_length} | {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=2048, help="number of boards")
    parser.add_argument("--moves", type=int, nargs="+", default=[20, 100, 190], help="moves before each measurement")
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    numba.set_num_threads(1)
    rows = {moves: measure(arguments.boards, moves, arguments.rounds) for moves in arguments.moves}
    print(f"us per snake, one core, {arguments.boards} boards")
    for moves, row in rows.items():
        print(f"after {moves:3d} moves  " + "  ".join(f"{name} {value:.2f}" for name, value in row.items()))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "processor": platform.processor() or platform.machine(),
            "boards": arguments.boards,
            "us_per_snake": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
