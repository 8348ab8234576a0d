"""Networks that fail, in network namespaces: delay, loss, cut links and a lost machine.

The fast tests run small scripts in the namespaces. The slow ones run powerband on three machines.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import powerband

ROOT = Path(powerband.__file__).parents[2]
ANSWERS = """
import socket, sys
server = socket.create_server((sys.argv[1], 29500))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(100):
        connection.sendall(data)
"""
ASKS = """
import socket, sys, time
from powerband.core.ranks.connections import limit_silence
connection = socket.create_connection((sys.argv[1], 29500))
assert limit_silence(3) == 1
for _ in range(int(sys.argv[2])):
    connection.sendall(b"question")
    assert connection.recv(100) == b"question"
print("ready", flush=True)
began = time.monotonic()
try:
    for _ in range(int(sys.argv[3])):
        connection.sendall(b"question")
        print(connection.recv(100), flush=True)
        time.sleep(0.1)
except OSError as error:
    print(type(error).__name__, time.monotonic() - began, flush=True)
"""
MEETS = """
import sys, time
from powerband.core.ranks.rendezvous import find_meeting_place
began = time.monotonic()
index, endpoint = find_meeting_place(sys.argv[1], int(sys.argv[2]), 20)
print(index, endpoint.hosted_here, endpoint.own_address, time.monotonic() - began)
"""


@pytest.fixture(scope="module")
def network():
    """Three machines in network namespaces. The tests are skipped where namespaces are not permitted."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "reliability"))
    try:
        from namespaces import Namespaces
    finally:
        sys.path.pop(0)
    try:
        machines = Namespaces(3)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")
    yield machines
    machines.close()


def script(network, index: int, code: str, *arguments: str) -> subprocess.Popen:
    """Starts a script on a machine."""
    command = ["ip", "netns", "exec", network.names[index], sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT / "src")})


@pytest.fixture
def answering(network):
    process = script(network, 0, ANSWERS, network.address(0))
    assert process.stdout.readline() == "ready\n"
    yield network
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_cut_link_is_noticed_within_seconds_though_nothing_is_closed(answering):
    client = script(answering, 1, ASKS, answering.address(0), "3", "1000")
    assert client.stdout.readline() == "ready\n"
    answering.link(0, "down")
    try:
        printed, _ = client.communicate(timeout=30)
    finally:
        answering.link(0, "up")
    name, seconds = printed.splitlines()[-1].split()
    assert name == "TimeoutError" and float(seconds) < 15, printed


def test_delay_and_loss_end_no_connection(answering):
    began = time.monotonic()
    with answering.disturbed(0, delay_s=0.03, loss=0.1):
        printed, _ = script(answering, 1, ASKS, answering.address(0), "100", "8").communicate(timeout=60)
    assert printed.count("question") == 8, printed
    assert time.monotonic() - began > 100 * 0.03  # so long do the first hundred answers take


def test_a_short_cut_ends_no_connection(answering):
    client = script(answering, 1, ASKS, answering.address(0), "0", "15")
    assert client.stdout.readline() == "ready\n" and "question" in client.stdout.readline()
    answering.link(0, "down")
    time.sleep(1)
    answering.link(0, "up")
    printed, _ = client.communicate(timeout=60)
    assert printed.count("question") == 14, printed


def test_the_next_machine_on_the_list_takes_over_if_the_first_is_cut_off(network):
    endpoints = ",".join(f"{network.address(index)}:29501" for index in range(2))
    network.link(0, "down")
    try:
        printed, _ = script(network, 1, MEETS, endpoints, "0").communicate(timeout=30)
        index, hosted, own, seconds = printed.split()
    finally:
        network.link(0, "up")
    assert (index, hosted, own) == ("1", "True", network.address(1)) and float(seconds) < 10


# -- powerband on three machines ----------------------------------------------------------------------------------


def command_line(network, folder: Path, index: int, *more: str) -> list[str]:
    """Command line of a machine; every machine has a private folder."""
    endpoints = ",".join(f"{network.address(each)}:29502" for each in range(3))
    size = "on_policy.num_envs=12 num_steps=16 minibatches=2 gpus=none threads=1 num_workers=0 tensorboard=false"
    command = f"train gym env_id=CartPole-v1 algo=ppo ppo.hidden=16 shared_trunk=true {size} log_interval_s=1"
    return [*command.split(), f"rdzv_endpoint={endpoints}", f"run_dir={folder / f'private{index}'}", *more]


def output(folder: Path) -> list[str]:
    files = [folder / f"machine{index}" / "out" for index in range(3)]
    return [file.read_text() if file.exists() else "" for file in files]


def wait(folder: Path, text: str, before: list[str], limit_s: float = 300) -> None:
    """Waits until a machine prints `text` after what it has printed `before`."""
    deadline = time.monotonic() + limit_s
    while not any(text in now[len(then) :] for now, then in zip(output(folder), before, strict=True)):
        assert time.monotonic() < deadline, output(folder)
        time.sleep(0.2)


@pytest.mark.slow
def test_a_run_survives_the_loss_of_the_machine_at_which_it_meets_and_takes_it_in_again(network, tmp_path):
    more = ("nnodes=2:3", "save_interval_s=2", "env_steps=100000000", "stall_s=20")
    launchers = [
        network.start(i, command_line(network, tmp_path, i, *more), tmp_path / f"machine{i}") for i in range(3)
    ]
    try:
        wait(tmp_path, " steps/s ", [""] * 3)
        time.sleep(5)
        before = output(tmp_path)
        network.lose(0)
        wait(tmp_path, "they meet at 10.231.77.2:29502", before)
        wait(tmp_path, " steps/s ", before)
        before = output(tmp_path)
        assert "whole checkpoints" in "".join(before) and "resumed from" in "".join(before)
        network.link(0, "up")
        launchers.append(network.start(0, command_line(network, tmp_path, 0, *more), tmp_path / "machine0"))
        wait(tmp_path, "3 on cpu", before)
        wait(tmp_path, " steps/s ", output(tmp_path))
        assert "Traceback" not in "".join(output(tmp_path))
    finally:
        for index in range(3):
            network.kill(index)
        for launcher in launchers:
            launcher.wait()


@contextlib.contextmanager
def run_of_three(network, folder: Path, env_steps: int) -> Iterator[list[subprocess.Popen]]:
    """Trains on three machines. The context begins when they train; after it, all must end with the same checkpoint."""
    more = ("nnodes=3", f"env_steps={env_steps}", "storage=local")
    launchers = [network.start(i, command_line(network, folder, i, *more), folder / f"machine{i}") for i in range(3)]
    try:
        wait(folder, "3 on cpu", [""] * 3)
        yield launchers
        assert [launcher.wait(250) for launcher in launchers] == [0, 0, 0], output(folder)
    finally:
        for index in range(3):
            network.kill(index)
    manifests = [folder / f"private{index}" / "checkpoints" / str(env_steps) / "manifest.json" for index in range(3)]
    assert len({file.read_bytes() for file in manifests}) == 1


@pytest.mark.slow
def test_a_run_on_a_slow_network_with_losses_ends_with_one_checkpoint(network, tmp_path):
    with run_of_three(network, tmp_path, 1920) as launchers, network.disturbed(1, delay_s=0.03, loss=0.02):
        for launcher in launchers:
            launcher.wait(250)


@pytest.mark.slow
def test_short_cuts_and_a_slow_machine_end_no_run(network, tmp_path):
    with run_of_three(network, tmp_path, 9600) as launchers:
        os.setpriority(os.PRIO_PROCESS, launchers[1].pid, 19)  # the slow machine
        for _ in range(5):
            network.link(2, "down")
            time.sleep(0.5)
            network.link(2, "up")
            time.sleep(1)
