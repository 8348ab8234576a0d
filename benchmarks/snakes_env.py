"""Speed of the snakes environment: the plain engine of the tests against the compiled one, and boards x threads.

    python benchmarks/snakes_env.py [--seconds 1] [--observation features] [--json out.json]

Everything is random play, six snakes a board, measured in one process. `engine` is moves, rewards of both teams and
restarts; `environment` adds observations of both teams. Per-core figures divide by the CPU time of the process, which
other work on the machine disturbs least; the table of threads also shows wall-clock time. A ratio to the plain engine
is the median over rounds in which both are timed one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numba  # noqa: E402
import torch  # noqa: E402

from envs.snakes.reference import Snakes  # noqa: E402
from powerband.envs.snakes.board import SnakesState, dump_board  # noqa: E402
from powerband.envs.snakes.env import SnakesEnv  # noqa: E402
from powerband.envs.snakes.kernels import Moves, move_boards, restart_all, restart_boards  # noqa: E402


class Plain:
    """The engine of the tests, with the cheapest source of chance."""

    def __init__(self):
        state = SnakesState.empty(1)
        restart_all(state, Moves(1, 2, torch.device("cpu")), seed=0)
        self.rng = random.Random(0)
        position = dump_board(state, 0)
        self.game = Snakes(**position, replace_turn=self.replace_turn, place_bean=self.place_bean)
        self.actions = [[self.rng.randrange(4) for _ in range(6)] for _ in range(1009)]

    def replace_turn(self, snake: int, allowed: list[int]) -> int:
        """One of the allowed directions."""
        return self.rng.choice(allowed)

    def place_bean(self, index: int, taken: set) -> tuple[int, int]:
        """A free cell."""
        while True:
            cell = self.rng.randrange(10), self.rng.randrange(20)
            if cell not in taken:
                return cell

    def run(self, rounds: int) -> int:
        """Makes `rounds` moves; returns the moves of boards made."""
        for t in range(rounds):
            self.game.step(self.actions[t % 1009])
        return rounds


class Engine:
    """Moves, rewards and restarts of N boards without observations."""

    def __init__(self, num_boards: int, threads: int):
        self.state, self.threads = SnakesState.empty(num_boards), threads
        self.moves = Moves(num_boards, 2 * num_boards, torch.device("cpu"))
        restart_all(self.state, self.moves, seed=0)
        self.actions = torch.randint(0, 4, (31, 2 * num_boards, 3))

    def run(self, rounds: int) -> int:
        """Makes `rounds` moves on every board; returns the moves of boards made."""
        boards = self.state.num_boards
        for t in range(rounds):
            self.moves.action.copy_(self.actions[t % 31])
            options = {"mirrored": boards, "relative": False, "seed": 0, "kind": 0, "threads": self.threads}
            if move_boards(self.state, self.moves, **options):
                restart_boards(self.state, self.moves, seed=0)
        return rounds * boards


class Environment:
    """`SnakesEnv` with the learner on both teams."""

    def __init__(self, num_boards: int, threads: int, observation: str):
        self.env = SnakesEnv(num_boards, observation=observation, threads=threads)
        self.actions = torch.randint(0, self.env.spec.num_actions, (31, 2 * num_boards, 3))

    def run(self, rounds: int) -> int:
        """Makes `rounds` steps; returns the moves of boards made."""
        for t in range(rounds):
            self.env.step(self.actions[t % 31])
        return rounds * self.env.num_boards


def speed(subject, seconds: float) -> tuple[float, float]:
    """(moves of boards per CPU second, per second) of at least `seconds`."""
    subject.run(1)
    done, rounds, cpu, wall = 0, 1, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        done += subject.run(rounds)
        rounds = min(2 * rounds, 1024)
    return done / (time.process_time() - cpu), done / (time.perf_counter() - wall)


def main() -> None:
    """Measures, prints the tables, and writes them with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of measurements behind the ratio")
    parser.add_argument("--boards", type=int, default=4096, help="of the compiled engine in the ratio")
    parser.add_argument("--observation", default="features", help="of the environment rows")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    plain, engine = Plain(), Engine(arguments.boards, 1)
    pairs = [(speed(plain, arguments.seconds)[0], speed(engine, arguments.seconds)[0]) for _ in range(arguments.rounds)]
    ratios = [fast / slow for slow, fast in pairs]
    result = {
        "command": " ".join(["python", *sys.argv]),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {"numba": numba.__version__, "torch": torch.__version__},
        "plain_moves_per_core_second": statistics.median(slow for slow, _ in pairs),
        "engine_moves_per_core_second": statistics.median(fast for _, fast in pairs),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "table": [],
    }
    print(f"plain engine   {result['plain_moves_per_core_second']:12,.0f} board moves per core second")
    print(f"compiled       {result['engine_moves_per_core_second']:12,.0f}")
    print(f"ratio          {result['ratio']:12.0f}   ({min(ratios):.0f} to {max(ratios):.0f})\n")
    print(f"{'what':12} {'boards':>7} {'threads':>7} {'per core second':>16} {'per second':>13} {'agent steps/s':>14}")
    for threads in sorted({1, 2, numba.config.NUMBA_NUM_THREADS} & set(range(1, numba.config.NUMBA_NUM_THREADS + 1))):
        for boards in (64, 512, 4096, 16384):
            subjects = {
                "engine": Engine(boards, threads),
                "environment": Environment(boards, threads, arguments.observation),
            }
            for name, subject in subjects.items():
                core, wall = speed(subject, arguments.seconds)
                row = {"what": name, "boards": boards, "threads": threads}
                result["table"].append({**row, "moves_per_core_second": core, "moves_per_second": wall})
                print(f"{name:12} {boards:7} {threads:7} {core:16,.0f} {wall:13,.0f} {6 * wall:14,.0f}", flush=True)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def processor() -> str:
    """Name of the processor as Linux gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
