"""`powerband profile -- COMMAND` on training scripts of several frameworks: ledger, equality of results, overhead.

    make peers
    python benchmarks/attach/frameworks.py
        --json benchmarks/results/attach/attach_frameworks.json [--pairs 10] [--length 1]

The scripts are in `framework_scripts`. Those of tianshou, torchrl, pytorch-lightning, skrl and rsl_rl need the packages
that ``make peers`` installs.

For each script:

- one run under ``powerband profile --keep-running``: sum of the ledger by wall time, share of the account ``other``,
  errors of the instrumentation;
- pairs of runs with and without the instrumentation. The digests of all parameters must be equal. Both runs of a pair
  share a core in turns of half a second, while the other one is stopped, so a slow phase of the machine slows both, and
  each has the caches of the core for itself. The overhead is the ratio of the processor seconds of the training loop,
  minus 1: of all threads of the process, and of its workers and ranks. The result is the median over pairs, with a 95 %
  bootstrap interval.

``--variant "second thread"`` compares the plain script with one that starts and ends a thread first, without the
instrumentation: a part of the overhead of a script that has no other thread. ``--variant "plain again"`` compares the
plain script with itself, which shows how exact the measurement is.

Each script of one process has a core of its own, and all cores measure at the same time. Scripts of several processes
follow one after another, and the runs of a pair have all cores in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from powerband.attach.processes.launch import launch
from powerband.bench.intervals import median_interval
from powerband.core.machine.device import host_facts

HERE = Path(__file__).parent
SCRIPTS = HERE / "framework_scripts"
PEERS = HERE.parents[1] / "build/peers"
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
CASES: dict[str, list[str]] = {
    "stable-baselines3 SAC": [str(SCRIPTS / "sb3.py"), "sac", "1200"],
    "stable-baselines3 PPO": [str(SCRIPTS / "sb3.py"), "ppo", "40960"],
    "stable-baselines3 PPO, two processes": [str(SCRIPTS / "sb3.py"), "subproc", "32768"],
    "CleanRL style DQN": [
        str(HERE.parents[1] / "examples/attach/cleanrl_style.py"),
        "--total-timesteps",
        "80000",
        "--outcome",
    ],
    "tianshou DQN": [str(SCRIPTS / "tianshou_dqn.py"), "30000"],
    "torchrl DQN": [str(SCRIPTS / "torchrl_dqn.py"), "20000"],
    "skrl PPO": [str(SCRIPTS / "skrl_ppo.py"), "32768"],
    "rsl_rl PPO": [str(SCRIPTS / "rsl_rl_ppo.py"), "800"],
    "torch, loader": [str(SCRIPTS / "supervised.py"), "plain", "8000"],
    "torch, loader with two workers": [str(SCRIPTS / "supervised.py"), "workers", "8000"],
    "accelerate": [str(SCRIPTS / "supervised.py"), "accelerate", "8000"],
    "pytorch-lightning": [str(SCRIPTS / "supervised.py"), "lightning", "8000"],
    "transformers Trainer": [str(SCRIPTS / "supervised.py"), "trainer", "8000"],
    "torch DDP, two gloo ranks": [*TORCHRUN, str(SCRIPTS / "ranks.py"), "1000"],
}
"""Name -> arguments of the interpreter. Training takes 10 to 25 seconds, because the first second costs more; on a slow
machine, ``--length 0.5`` halves the iterations."""
SEVERAL_PROCESSES = (
    "stable-baselines3 PPO, two processes",
    "torch, loader with two workers",
    "torch DDP, two gloo ranks",
)
"""Scripts that need all cores."""


TURN_S = 0.5
"""Seconds of a turn."""
VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "plain": ("", {}),
    "profile": ("profile", {}),
    "second thread": ("", {"SECOND_THREAD": "1"}),
    "plain again": ("", {}),
}
"""Name -> instrumentation, environment variables."""


def scaled(arguments: list[str], length: float) -> list[str]:
    """Returns the arguments of a script with `length` times its iterations."""
    return [str(round(length * int(word))) if word.isdigit() and int(word) >= 100 else word for word in arguments]


def variables(peers: str) -> dict[str, str]:
    """Returns the environment variables of the scripts."""
    paths = [peers, *filter(None, [os.environ.get("PYTHONPATH", "")])] if peers else []
    return {"OMP_NUM_THREADS": "1", **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}


def outcome_of(output: str) -> tuple[str, float]:
    """Returns the digest that a script has printed and its processor seconds, which are the sum over its ranks.

    Raises:
        RuntimeError: The script has printed none.
    """
    outcomes = re.findall(r"OUTCOME (\w+) (\d+\.\d{6})", output)  # ranks may print into the same line
    if not outcomes:
        raise RuntimeError(output[-2000:])
    return " ".join(sorted(digest for digest, _ in outcomes)), sum(float(seconds) for _, seconds in outcomes)


def interpreter(core: int | None) -> list[str]:
    """Returns the command of Python on a core; None for any core."""
    return [sys.executable] if core is None else ["taskset", "--cpu-list", str(core), sys.executable]


def run_in_turns(arguments: list[str], names: list[str], peers: str, core: int | None) -> dict[str, tuple[str, float]]:
    """Runs some of the `VARIANTS` of a script in turns, and returns the outcome of each."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        runs, command = {}, [*interpreter(core), *arguments]
        for name in names:
            folder, (tool, own) = Path(root) / name, VARIANTS[name]
            folder.mkdir()
            with (folder / "out.txt").open("wb") as out:
                runs[name] = launch(command, tool, folder, {**variables(peers), **own}, stdout=out, stderr=out).popen
            stop_or_continue(runs[name].pid, signal.SIGSTOP)
        running = list(runs.values())
        while running:
            for each in list(running):
                stop_or_continue(each.pid, signal.SIGCONT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.wait(TURN_S)
                    running.remove(each)
                if len(running) > 1:
                    stop_or_continue(each.pid, signal.SIGSTOP)
        return {name: outcome_of((Path(root) / name / "out.txt").read_text()) for name in names}


def stop_or_continue(pid: int, number: signal.Signals) -> None:
    """Sends SIGSTOP or SIGCONT to a process and its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def reason(error: RuntimeError) -> str:
    """Returns the exception of a script that failed, without its traceback, which names folders of this machine."""
    lines = str(error).splitlines()
    raised = [line for line in lines if re.match(r"\w+(\.\w+)*(Error|Exception)\b", line)]
    return [*raised, *lines[-1:], "no output"][0].replace(str(HERE.parents[1]), "")


def profiled(arguments: list[str], peers: str, core: int | None) -> dict[str, Any]:
    """Runs a script under ``powerband profile`` and returns the profile."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "powerband", "profile", "--keep-running", "--json", str(file), "--"]
        environment = {**os.environ, **variables(peers)}
        done = subprocess.run(
            [*command, *interpreter(core), *arguments], env=environment, capture_output=True, text=True, timeout=600
        )
        if done.returncode or not file.exists():
            raise RuntimeError(f"status {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
        return json.loads(file.read_text())


def measure(name: str, arguments: list[str], variant: str, pairs: int, peers: str, core: int | None) -> dict[str, Any]:
    """Measures a variant of one script on a core, or on any core for None, and returns its row."""
    if variant != "profile":
        return {"script": name, "variant": variant, **compared(arguments, variant, pairs, peers, core)}
    profile = profiled(arguments, peers, core)
    wall_s, ledger = profile["wall_s"], profile["ledger"]
    row: dict[str, Any] = {
        "script": name,
        "arguments": " ".join(word for word in arguments if not word.startswith("/")),
        "wall_s": wall_s,
        "ledger_sum_by_wall": sum(ledger.values()) / wall_s,
        "other_share": ledger.get("other", 0.0) / wall_s,
        "shares": {account: seconds / wall_s for account, seconds in ledger.items()},
        "cause": profile["cause"],
        "updates_per_s": profile["updates_per_s"],
        "iteration_ms": 1e3 * wall_s / profile["ranks"][0]["facts"]["iterations"],
        "processes": len(profile["processes"]),
        "failures": profile["failures"],
    }
    if pairs:
        row |= compared(arguments, variant, pairs, peers, core)
    return row


def compared(arguments: list[str], variant: str, pairs: int, peers: str, core: int | None) -> dict[str, Any]:
    """Returns what a variant adds to the processor time of the plain script, and whether all digests agree."""
    digests, added = set(), []
    for pair in range(pairs):
        results = run_in_turns(arguments, ["plain", variant] if pair % 2 == 0 else [variant, "plain"], peers, core)
        digests |= {digest for digest, _ in results.values()}
        added.append(results[variant][1] / results["plain"][1] - 1)
    return {
        "bit_identical": len(digests) == 1,
        "overhead": statistics.median(added),
        "overhead_interval": median_interval(added),
        "overheads": added,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=str(PEERS), help="folder of the frameworks")
    parser.add_argument("--pairs", type=int, default=10, help="0, which measures no overhead, or two or more")
    parser.add_argument("--length", type=float, default=1.0, help="factor on the iterations of the scripts")
    parser.add_argument("--variant", choices=list(VARIANTS)[1:], default="profile")
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    rows: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()

    def add_row(name: str, core: int | None) -> None:
        try:
            row = measure(
                name, scaled(CASES[name], options.length), options.variant, options.pairs, options.peers, core
            )
        except RuntimeError as error:
            row = {"script": name, "error": reason(error)}
        with lock:
            rows[name] = row
            print(json.dumps({key: value for key, value in row.items() if key != "overheads"}), flush=True)
            if options.json:
                done = [rows[each] for each in CASES if each in rows]
                result = {"pairs": options.pairs, "host": host_facts(), "scripts": done}
                Path(options.json).write_text(json.dumps(result, indent=2) + "\n")

    def add_row_on_a_core(name: str) -> None:
        core = cores.get()
        try:
            add_row(name, core)
        finally:
            cores.put(core)

    alone = [name for name in options.only if name in SEVERAL_PROCESSES]
    with ThreadPoolExecutor(cores.qsize()) as pool:
        for each in as_completed(pool.submit(add_row_on_a_core, name) for name in options.only if name not in alone):
            each.result()
    for name in alone:
        add_row(name, None)


if __name__ == "__main__":
    main()
