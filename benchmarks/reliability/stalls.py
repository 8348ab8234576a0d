"""Stalls: stops a part of a run, and measures the seconds until the run names the stall.

The parts are an evaluator, the reader of the output, the threads of the batch loader, the link between two ranks, one
of two ranks, and the process of a simulator.

Each must be named, on the console or in the run folder, within ``stall_s`` plus five seconds, or plus ten seconds for
the default of 60. A thread is stopped by attaching to it as a debugger does, because SIGSTOP stops a whole process. The
link is that of two network namespaces, so this kind needs root on Linux. The output goes to a pipe whose reader stops;
the pipe is then filled. Batches that are ready are still used. The time of these two kinds therefore counts from the
last change of phase.

    python benchmarks/reliability/stalls.py --count 50 --json benchmarks/results/reliability/stalls.json
    python benchmarks/reliability/stalls.py --count 8 --stall-s 60
        --json benchmarks/results/reliability/stalls_default.json
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests")]

from powerband.core.machine.device import host_facts  # noqa: E402
from powerband.core.machine.process_states import process_state  # noqa: E402
from powerband.core.run_folder import STALL_FILE  # noqa: E402
from powerband.core.stalls.progress import RankProgress, SharedPages  # noqa: E402
from recipes.libero.demonstrations import record  # noqa: E402
from soak_faults import simulators  # noqa: E402
from soak_runs import COMMON, Child, ranks  # noqa: E402

GYM = "gym algo=sac sac.hidden=16 off_policy.num_envs=2 learning_starts=40 num_workers=0 env_steps=100000000"
SNAKES = (
    "snakes algo=ddpg ddpg.hidden=32 off_policy.num_envs=4 global_batch_size=32 learning_starts=40 env_steps=100000000"
)
WORDS = {
    "evaluator": f"{GYM} eval_interval=200 eval_episodes=100",
    "output": GYM,
    "loader": "libero variant=smoke demos_dir={data} max_steps=10 eval_interval=0 updates=10000000 "
    "offline.place=host offline.loader_threads=2",
    "link": SNAKES,
    "rank": f"{SNAKES} nproc=2",
    "simulator": f"{GYM.replace('num_workers=0', 'num_workers=1')} supervise=false",
}
PTRACE_ATTACH, WALL, CLONE_NEWNET = 16, 0x40000000, 0x40000000
PORT = 29_617
START_S, NAMED = 240.0, "made no progress for|have waited for other ranks for"
libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def running(words: str, run: Path, log: Path, data: Path, prepare: Callable[[], object]) -> Iterator[Child]:
    """A run that has made its first updates; it ends with the context."""
    child = Child(["train", *f"{words} {COMMON}".format(data=data).split(), f"run_dir={run}"], log, prepare)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def wait_until(ready: Callable[[], bool], seconds: float, child: Child) -> float:
    """Waits until `ready()`, and returns the seconds that it took.

    Raises:
        TimeoutError: It took longer, or the process has ended.
    """
    began = time.monotonic()
    while not ready():
        if time.monotonic() - began > seconds or child.ended():
            raise TimeoutError(f"status {child.status}: {child.printed()[-500:]}")
        time.sleep(0.02)
    return time.monotonic() - began


def named(run: Path, *children: Child) -> str:
    """The sentence that names a stall: of the run folder or of the console; "" before."""
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads((run / STALL_FILE).read_text())["message"])
    lines = (line for child in children for line in child.printed().splitlines())
    return next((line for line in lines if any(part in line for part in NAMED.split("|"))), "")


def updating(run: Path) -> bool:
    """True once the run has logged losses."""
    with contextlib.suppress(OSError):
        return "losses/" in (run / "metrics.jsonl").read_text()
    return False


def evaluator(run: Path, log: Path, data: Path, words: str, rng: random.Random, limit_s: float) -> tuple[float, str]:
    """SIGSTOP to the rank that evaluates, within an evaluation."""
    with running(WORDS["evaluator"] + words, run, log, data, lambda: None) as child:
        wait_until(lambda: updating(run), START_S, child)
        wait_until(lambda: (now := progress(child)) is not None and now.phase == "eval", START_S, child)
        time.sleep(rng.uniform(0, 0.2))
        os.kill(child.pid, signal.SIGSTOP)
        seconds = wait_until(lambda: bool(named(run, child)), limit_s, child)
        return seconds, named(run, child)


def progress(child: Child) -> RankProgress | None:
    """What a single rank does at the moment, from its page in shared memory."""
    with contextlib.suppress(OSError, ValueError):
        for number in os.listdir(f"/proc/{child.pid}/fd"):
            path = f"/proc/{child.pid}/fd/{number}"
            if "powerband-progress" in os.readlink(path):
                return RankProgress.read(SharedPages(1, path).page(0))
    return None


def seconds_until_named(run: Path, child: Child, limit_s: float) -> float:
    """Waits until a stall of a single rank is named, and returns the seconds since its last change of phase."""
    last_ns, began = time.perf_counter_ns(), time.monotonic()
    while not named(run, child):
        now = progress(child)
        last_ns = max(last_ns, now.beat_ns) if now is not None else last_ns
        if time.perf_counter_ns() - last_ns > limit_s * 1e9 or time.monotonic() - began > 120 + limit_s:
            raise TimeoutError(f"status {child.status}: {child.printed()[-500:]}")
        time.sleep(0.05)
    return (time.perf_counter_ns() - last_ns) / 1e9


def output(run: Path, log: Path, data: Path, words: str, rng: random.Random, limit_s: float) -> tuple[float, str]:
    """SIGSTOP to the process that reads the output of the run, as to `tee` in ``powerband train ... | tee log``."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    sink = subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)

    def into_pipe() -> None:
        os.dup2(writer, 1)
        os.dup2(writer, 2)

    try:
        with running(WORDS["output"] + words, run, log, data, into_pipe) as child:
            wait_until(lambda: updating(run), START_S, child)
            time.sleep(rng.uniform(0, 2))
            sink.send_signal(signal.SIGSTOP)
            while process_state(sink.pid) != "T":
                time.sleep(0.001)
            filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
            with contextlib.suppress(BlockingIOError):
                while os.write(filler, b"\n"):
                    pass
            os.close(filler)
            return seconds_until_named(run, child, limit_s), named(run, child)
    finally:
        sink.kill()
        sink.wait()
        os.close(reader)
        os.close(writer)


def loader(run: Path, log: Path, data: Path, words: str, rng: random.Random, limit_s: float) -> tuple[float, str]:
    """Stops the threads that prepare batches: all threads that Python has started in the rank."""
    with running(WORDS["loader"] + words, run, log, data, lambda: None) as child:
        wait_until(lambda: updating(run), START_S, child)
        time.sleep(rng.uniform(0, 2))
        before = {int(name) for name in os.listdir(f"/proc/{child.pid}/task")} - {child.pid}
        for thread in before:
            libc.ptrace(PTRACE_ATTACH, thread, 0, 0)
        try:
            return seconds_until_named(run, child, limit_s), named(run, child)
        finally:
            child.kill()
            for thread in before:
                with contextlib.suppress(ChildProcessError):
                    while not os.WIFSIGNALED(os.waitpid(thread, WALL)[1]):
                        pass


def link(run: Path, log: Path, data: Path, words: str, rng: random.Random, limit_s: float) -> tuple[float, str]:
    """Cuts the link between two ranks that are alone in their network namespaces."""
    names = [f"pb{os.getpid()}{side}" for side in "ab"]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        veth = f"pb{os.getpid() % 100_000}"
        commands = [f"link add {veth}a type veth peer name {veth}b"]
        for number, (name, side) in enumerate(zip(names, "ab", strict=True)):
            commands += [
                f"link set {veth}{side} netns {name}",
                f"-n {name} addr add 10.93.7.{number + 1}/24 dev {veth}{side}",
            ]
            commands += [f"-n {name} link set {veth}{side} up", f"-n {name} link set lo up"]
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)

        def enter(number: int) -> Callable[[], None]:
            def prepare() -> None:
                with open(f"/run/netns/{names[number]}") as namespace:
                    assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0
                os.environ |= {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
                os.environ |= {"MASTER_ADDR": "10.93.7.1", "MASTER_PORT": str(PORT)}
                os.environ["GLOO_SOCKET_IFNAME"] = f"{veth}{'ab'[number]}"

            return prepare

        with contextlib.ExitStack() as stack:
            logs = [log.with_name(f"{log.name}-{side}") for side in "ab"]
            for each in logs:
                each.unlink(missing_ok=True)
            children = [
                stack.enter_context(running(WORDS["link"] + words, run, logs[number], data, enter(number)))
                for number in range(2)
            ]
            wait_until(lambda: updating(run), START_S, children[0])
            time.sleep(rng.uniform(0, 2))
            subprocess.run(["ip", "-n", names[0], "link", "set", f"{veth}a", "down"], check=True)
            seconds = wait_until(lambda: bool(named(run, *children)), limit_s, children[0])
            return seconds, named(run, *children)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def rank(run: Path, log: Path, data: Path, words: str, rng: random.Random, limit_s: float) -> tuple[float, str]:
    """SIGSTOP to one of two ranks that the command has started."""
    return stopped_process("rank", lambda child: [pid for pid, _ in ranks(run)], run, log, data, words, rng, limit_s)


def simulator(run: Path, log: Path, data: Path, words: str, rng: random.Random, limit_s: float) -> tuple[float, str]:
    """SIGSTOP to the process of a simulator, which is not restarted."""
    return stopped_process("simulator", lambda child: simulators(child.pid), run, log, data, words, rng, limit_s)


def stopped_process(
    kind: str,
    pids: Callable[[Child], list[int]],
    run: Path,
    log: Path,
    data: Path,
    words: str,
    rng: random.Random,
    limit_s: float,
) -> tuple[float, str]:
    """SIGSTOP to one of the processes `pids(child)` of a run."""
    with running(WORDS[kind] + words, run, log, data, lambda: None) as child:
        wait_until(lambda: updating(run), START_S, child)
        time.sleep(rng.uniform(0, 2))
        os.kill(rng.choice(pids(child)), signal.SIGSTOP)
        seconds = wait_until(lambda: bool(named(run, child)), limit_s, child)
        return seconds, named(run, child)


KINDS = {
    "evaluator": evaluator,
    "output": output,
    "loader": loader,
    "link": link,
    "rank": rank,
    "simulator": simulator,
}


def main() -> int:
    """Returns the exit status: 1 if a criterion was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=50, help="stalls over all kinds")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--stall-s", type=float, default=5.0, help="the option of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the results, which a second start continues")
    options = parser.parse_args()
    torch.set_num_threads(1)
    limit_s = options.stall_s + (10 if options.stall_s >= 60 else 5)
    rows: list[dict[str, Any]] = []
    if options.json and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    with tempfile.TemporaryDirectory(prefix="powerband-stalls-") as name:
        folder = Path(name)
        data = record(folder / "data")
        for number in range(len(rows), options.count):
            kind, rng = options.kinds[number % len(options.kinds)], random.Random(f"{options.seed} {number}")
            run = folder / f"run-{number}"
            row: dict[str, Any] = {"number": number, "kind": kind}
            try:
                words = f" stall_s={options.stall_s:g}"
                row["seconds"], row["said"] = KINDS[kind](run, folder / "log", data, words, rng, limit_s + 20)
                row["in time"] = row["seconds"] <= limit_s
            except TimeoutError as error:
                row |= {"seconds": None, "in time": False, "said": str(error)}
            rows.append(row)
            shutil.rmtree(run, ignore_errors=True)
            print(json.dumps(row), flush=True)
            if options.json:
                summary = {
                    each: [sum(row["in time"] for row in rows if row["kind"] == each),
                           sum(row["kind"] == each for row in rows),
                           max((row["seconds"] or -1.0 for row in rows if row["kind"] == each), default=None)]
                    for each in options.kinds
                }  # fmt: skip
                facts = {"host": host_facts(), "arguments": sys.argv[1:], "limit_s": limit_s}
                columns = ["named in time", "stalls", "largest seconds"]
                result = {**facts, "summary": {"columns": columns, **summary}, "rows": rows}
                options.json.write_text(json.dumps(result) + "\n")
    return int(not all(row["in time"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
