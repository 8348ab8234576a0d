"""Board moves per second of the compiled snakes engine, compared with the plain Python engine of the tests.

    python benchmarks/environments/snakes_env.py [--seconds 1] [--observation features] [--json out.json]
    python benchmarks/environments/snakes_env.py --device cuda [--json out.json]

All games have six snakes per board that move at random, in one process. The subject `engine` computes moves, rewards of
both teams and restarts; `environment` also computes the observations of both teams. Rates per core use the CPU time of
the process, which depends least on other work of the machine. The table over boards and threads also has rates per
second of wall time. The ratio is the median over rounds, each of which measures both engines one after the other. With
`--device cuda` only the table is measured, on the device.
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
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import numba  # noqa: E402
import torch  # noqa: E402

from powerband.core.machine.device import host_facts  # noqa: E402
from powerband.doctor.stopwatch import synchronize  # noqa: E402
from powerband.recipes.snakes.env.board import SnakesState, dump_board  # noqa: E402
from powerband.recipes.snakes.env.env import SnakesEnv  # noqa: E402
from powerband.recipes.snakes.env.kernels import MoveBuffers, move_boards, restart_all, restart_boards  # noqa: E402
from recipes.snakes.env.reference import Snakes  # noqa: E402


class PlainEngine:
    """Plain engine of the tests, with a fast random number generator."""

    def __init__(self) -> None:
        state = SnakesState.empty(1)
        restart_all(state, MoveBuffers(1, 2, torch.device("cpu")), seed=0)
        self.rng = random.Random(0)
        position = dump_board(state, 0)
        self.game = Snakes(**position, replace_turn=self.replace_turn, place_bean=self.place_bean)
        self.actions = [[self.rng.randrange(4) for _ in range(6)] for _ in range(1009)]

    def replace_turn(self, snake: int, allowed: list[int]) -> int:
        """Returns one of the allowed directions."""
        return self.rng.choice(allowed)

    def place_bean(self, index: int, occupied: set) -> tuple[int, int]:
        """Returns a free cell."""
        while True:
            cell = self.rng.randrange(10), self.rng.randrange(20)
            if cell not in occupied:
                return cell

    def run(self, rounds: int) -> int:
        """Makes `rounds` moves and returns the number of board moves."""
        for t in range(rounds):
            self.game.step(self.actions[t % 1009])
        return rounds


class Engine:
    """Compiled engine: moves, rewards and restarts of N boards, without observations."""

    def __init__(self, num_boards: int, threads: int, device: str = "cpu") -> None:
        self.device, self.threads = torch.device(device), threads
        self.state = SnakesState.empty(num_boards, device=self.device)
        self.moves = MoveBuffers(num_boards, 2 * num_boards, self.device)
        restart_all(self.state, self.moves, seed=0)
        self.actions = torch.randint(0, 4, (31, 2 * num_boards, 3), device=self.device)

    def run(self, rounds: int) -> int:
        """Makes `rounds` moves on every board and returns the number of board moves."""
        boards = self.state.num_boards
        for t in range(rounds):
            self.moves.action.copy_(self.actions[t % 31])
            options = {"mirrored": boards, "relative": False, "seed": 0, "kind": 0, "threads": self.threads}
            ended = move_boards(self.state, self.moves, **options)
            if ended is None or ended:  # on CUDA the host does not know whether a game ended
                restart_boards(self.state, self.moves, seed=0)
        synchronize(self.device)
        return rounds * boards


class Environment:
    """Complete environment, in which the learner plays both teams."""

    def __init__(self, num_boards: int, threads: int, observation: str, device: str = "cpu") -> None:
        self.env = SnakesEnv(num_boards, observation=observation, threads=threads, device=device)
        self.actions = torch.randint(0, self.env.spec.num_actions, (31, 2 * num_boards, 3), device=device)

    def run(self, rounds: int) -> int:
        """Makes `rounds` steps and returns the number of board moves."""
        for t in range(rounds):
            self.env.step(self.actions[t % 31])
        synchronize(self.env.device)
        return rounds * self.env.num_boards


def speed(subject: PlainEngine | Engine | Environment, seconds: float) -> tuple[float, float]:
    """Returns (board moves per CPU second, board moves per second), measured over at least `seconds`."""
    subject.run(1)
    done, rounds, cpu, wall = 0, 1, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        done += subject.run(rounds)
        rounds = min(2 * rounds, 1024)
    return done / (time.process_time() - cpu), done / (time.perf_counter() - wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of measurements for the ratio")
    parser.add_argument("--boards", type=int, default=4096, help="boards of the compiled engine in the ratio")
    parser.add_argument("--observation", default="features", help="observation of the environment rows")
    parser.add_argument("--device", help="measure the table alone, on this device")
    parser.add_argument(
        "--table-boards", type=int, nargs="+", default=[64, 512, 4096, 16384], help="boards of the table"
    )
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device:
        result = {"host": host_facts(), "device": arguments.device, "table": []}
        measure_table(arguments, [1], arguments.device, result)
        return

    plain, engine = PlainEngine(), Engine(arguments.boards, 1)
    pairs = [(speed(plain, arguments.seconds)[0], speed(engine, arguments.seconds)[0]) for _ in range(arguments.rounds)]
    ratios = [fast / slow for slow, fast in pairs]
    result: dict[str, Any] = {
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
    limit = numba.config.NUMBA_NUM_THREADS
    measure_table(arguments, sorted({1, 2, limit} & set(range(1, limit + 1))), "cpu", result)


def measure_table(arguments: argparse.Namespace, threads: list[int], device: str, result: dict[str, Any]) -> None:
    """Adds the rows of the table over threads and boards to `result`, and writes the file after each of them."""
    print(
        f"{'subject':12} {'boards':>7} {'threads':>7} {'per core second':>16} {'per second':>13} {'agent steps/s':>14}"
    )
    for count in threads:
        for boards in arguments.table_boards:
            subjects = {
                "engine": Engine(boards, count, device),
                "environment": Environment(boards, count, arguments.observation, device),
            }
            for name, subject in subjects.items():
                core, wall = speed(subject, arguments.seconds)
                row = {"what": name, "boards": boards, "threads": count}
                result["table"].append({**row, "moves_per_core_second": core, "moves_per_second": wall})
                print(f"{name:12} {boards:7} {count:7} {core:16,.0f} {wall:13,.0f} {6 * wall:14,.0f}", flush=True)
                if arguments.json:
                    arguments.json.parent.mkdir(parents=True, exist_ok=True)
                    arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def processor() -> str:
    """Returns the name of the processor from /proc/cpuinfo, or from Python if that file is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
