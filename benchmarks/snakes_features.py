"""Microseconds per snake that each observation costs on one core, on boards as greedy play leaves them.

The observations take turns for several rounds; process CPU time is measured and the median reported.

    python benchmarks/snakes_features.py --json benchmarks/results/snakes_features.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import numba
import torch

from powerband.envs.snakes.board import SnakesState
from powerband.envs.snakes.kernels import Moves, move_boards, restart_all, restart_boards
from powerband.envs.snakes.observations import OBSERVATIONS
from powerband.envs.snakes.opponents import GreedyOpponent, RandomOpponent


def played_boards(num_boards: int, moves: int) -> SnakesState:
    """Boards after `moves` moves of greedy against greedy."""
    state, m = SnakesState.empty(num_boards), Moves(num_boards, 2 * num_boards, torch.device("cpu"))
    restart_all(state, m, seed=1)
    greedy = GreedyOpponent("torus")
    for _ in range(moves):
        for team in range(2):
            m.action[team * num_boards : (team + 1) * num_boards] = greedy.act_team(state, slice(None), team)
        move_boards(state, m, mirrored=num_boards, relative=False, seed=1, kind=0, threads=1)
        restart_boards(state, m, seed=1)
    return state


def measure(num_boards: int, moves: int, rounds: int) -> dict[str, float]:
    """Median microseconds of CPU time per snake for every observation, and for the opponents."""
    state = played_boards(num_boards, moves)
    boards, jobs = slice(0, num_boards), {}
    for name, observation in OBSERVATIONS.items():
        out = observation.spec.zeros(num_boards)
        jobs[name] = lambda observation=observation, out=out: observation.write(state, 0, boards, out)
    for name, opponent in (("greedy", GreedyOpponent()), ("random", RandomOpponent())):
        jobs[name] = lambda opponent=opponent: opponent.act_team(state, boards, 1)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds + 1):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            times[name].append((time.process_time() - start) / (3 * num_boards) * 1e6)
    mean_length = float(state.length.float().mean())
    return {"mean_length": mean_length} | {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    """Prints a table and writes it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=2048)
    parser.add_argument("--moves", type=int, nargs="+", default=[20, 100, 190])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    numba.set_num_threads(1)
    rows = {moves: measure(args.boards, moves, args.rounds) for moves in args.moves}
    print(f"us per snake, one core, {args.boards} boards")
    for moves, row in rows.items():
        print(f"after {moves:3d} moves  " + "  ".join(f"{name} {value:.2f}" for name, value in row.items()))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        report = {"processor": platform.processor() or platform.machine(), "boards": args.boards, "us_per_snake": rows}
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
