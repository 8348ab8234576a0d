"""Ranks through the real command line: powerband's own launcher and torchrun, gloo on CPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

import runs
from distributed.listening import check_on_loopback
from distributed.ranks import CommandOnRanks
from powerband.cli import main as cli
from powerband.core.machine.utilisation import process_tree
from powerband.core.ranks import launch
from powerband.core.run_folder import process_start_ticks

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "powerband"]
POWERBAND = [sys.executable, "-m", "powerband"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(command: list[str], *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*command, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen, timeout: float = 150) -> str:
    output, _ = process.communicate(timeout=timeout)
    return output


@pytest.mark.slow
def test_ranks_notice_the_time_limit_though_updates_make_their_iterations_a_hundred_times_as_long(tmp_path):
    run = tmp_path / "run"
    arguments = (
        "snakes algo=ddpg off_policy.num_envs=4 learning_starts=100 global_batch_size=512 time_limit_s=8".split()
    )
    arguments += ["gpus=none", "nproc=2", "tensorboard=false", f"run_dir={run}"]
    command = CommandOnRanks(["train", *arguments], tmp_path / "printed")
    assert command.finish() == [0, 0], command.errors()
    last = runs.metrics(run)[-1]
    assert last["grad_steps"] > 0 and "time limit of 8 s reached" in command.printed()
    times = [json.loads(text)["time_s"] for text in (run / "metrics.jsonl").read_text().splitlines()]
    assert times[-1] < 20


def test_sizes_that_do_not_divide_are_refused_before_a_rank_starts(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(launch, "_elastic", lambda *settings: pytest.fail("ranks were started"))
    arguments = [
        *runs.SMALL["ddpg"],
        "--gpus",
        "none",
        "--nproc",
        "2",
        f"run_dir={tmp_path / 'run'}",
        "global_batch_size=33",
    ]
    assert cli.main(["train", *arguments]) == 2
    output = "".join(capfd.readouterr())
    assert "33" in output and output.count("\n") <= 2
    assert not (tmp_path / "run").exists()


def endless(name: str, run: Path) -> list[str]:
    """Returns the arguments of an endless run of `SMALL` on two ranks."""
    arguments = [*runs.SMALL[name], "--gpus", "none", "--nproc", "2", "tensorboard=false", f"run_dir={run}"]
    return ["train", *arguments, "env_steps=100000000", "log_interval_s=0.5"]


def wait_for_rates(process: subprocess.Popen, text: str = "steps/s") -> str:
    """Returns what a started run prints until it trains, or until it prints `text`."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            break
    time.sleep(0.5)
    return "".join(lines)


def stopped(name: str, run: Path, tmp_path: Path) -> str:
    """Starts an endless run, ends it by a signal, at which the ranks save, and returns their output."""
    command = CommandOnRanks(endless(name, run), tmp_path / "printed")
    command.wait_for_line("steps/s")
    check_on_loopback([each.pid for each in command.processes], at_least=3)  # the store, and gloo on each rank
    time.sleep(0.5)
    command.send_signal(signal.SIGTERM)
    assert command.finish() == [128 + signal.SIGTERM] * 2, command.errors()
    return command.printed()


@pytest.mark.slow
def test_a_signal_to_ranks_saves_and_ranks_of_a_killed_torchrun_save_too(tmp_path):
    run = tmp_path / "run"
    printed = stopped("ddpg", run, tmp_path)
    reached = runs.state(run)["shared/run/env_steps"]
    assert reached > 0
    process = start(TORCHRUN, "train", "snakes", f"resume={run}", "env_steps=100000000")
    wait_for_rates(process)
    processes = json.loads((run / "processes.json").read_text())["ranks"]
    assert len(processes) == 2
    check_on_loopback([each["pid"] for each in processes], at_least=2)  # torchrun itself hosts the store
    process.kill()
    deadline = time.monotonic() + 60
    while any(process_start_ticks(each["pid"]) == each["began"] for each in processes):
        assert time.monotonic() < deadline, "the ranks go on without their launcher"
        time.sleep(0.1)
    state = runs.state(run)
    assert state["shared/run/env_steps"] > reached, finish(process)
    shares_sizes(printed, state)
    continues_on_one_rank(run, state)


@pytest.mark.slow
def test_the_launcher_resumes_and_restarts_on_policy_ranks_and_a_signal_to_it_saves_on_both_again(tmp_path):
    run = tmp_path / "run"
    stopped("ppo", run, tmp_path)
    reached = runs.state(run)["shared/run/env_steps"]
    assert reached > 0
    arguments = ["train", "snakes", f"resume={run}", "env_steps=100000000", "max_restarts=1", "save_interval_s=1"]
    process = start(POWERBAND, *arguments)
    output = wait_for_rates(process)
    processes = json.loads((run / "processes.json").read_text())["ranks"]
    os.kill(processes[1]["pid"], signal.SIGKILL)
    output += wait_for_rates(process, "resumed from")
    output += wait_for_rates(process)
    assert json.loads((run / "processes.json").read_text())["ranks"] != processes
    check_on_loopback(process_tree(process.pid), at_least=3)
    process.send_signal(signal.SIGTERM)
    output += finish(process)
    assert "ranks" in output and process.returncode == 128 + signal.SIGTERM, output
    state = runs.state(run)
    assert state["shared/run/env_steps"] > reached, output
    assert any(name.startswith("rank1/") for name in state), "the run went on without its second rank"
    continues_on_one_rank(run, state)


def continues_on_one_rank(run: Path, saved: dict) -> None:
    """A resume on one rank keeps counters, sizes over all ranks, random streams and every stored transition."""
    env_steps = saved["shared/run/env_steps"]
    with mock.patch.dict(os.environ):  # a launcher sets the number of threads
        assert (
            cli.main(["train", "snakes", f"resume={run}", "nproc=1", "max_restarts=0", f"env_steps={env_steps + 8}"])
            == 0
        )
    assert "saved by 2 rank(s), continued by 1" in (run / "train.log").read_text()
    state = runs.state(run)
    assert not any(name.startswith("rank1/") for name in state)
    assert state["shared/run/env_steps"] > env_steps
    assert len(state["rank0/env/board_id"]) == len(saved["rank0/env/board_id"]) + len(saved["rank1/env/board_id"])
    done = state["shared/run/grad_steps"] - saved["shared/run/grad_steps"]
    if "rank0/replay/rows" not in state:
        assert done > 0
        return
    assert done == state["shared/run/env_steps"] - env_steps, "an update per step"
    rows = {tuple(row) for row in state["rank0/replay/rows"].view(torch.int32).tolist()}
    before = torch.cat([saved["rank0/replay/rows"], saved["rank1/replay/rows"]]).view(torch.int32).tolist()
    assert len(before) == env_steps and all(tuple(row) in rows for row in before)
    steps = (state["shared/run/env_steps"] - env_steps) // 4
    assert state["rank0/noise/ddpg/act:4"] == saved["rank0/noise/ddpg/act:2"] + steps


def shares_sizes(output: str, state: dict) -> None:
    """Checks that the ranks report their shares of the batch and have different environments and transitions."""
    assert "32 over 2 rank(s) = 16 each" in output and "would be 64 in total" in output
    assert state["shared/run/grad_steps"] == state["shared/run/env_steps"] - 40, "an update a step after the warm-up"
    assert state["rank0/env/board_id"].tolist() == [0, 1] and state["rank1/env/board_id"].tolist() == [2, 3]
    assert not (state["rank0/replay/rows"] == state["rank1/replay/rows"]).all(1).any(), (
        "two ranks stored one transition"
    )
