"""Rendezvous: wrong addresses are reported at once, and the machines of a run must share its folder."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerband.core.errors import ConfigError
from powerband.core.ranks import launch, rendezvous
from powerband.core.ranks.rendezvous import find_endpoint, find_meeting_place

SOURCE = Path(launch.__file__).parents[3]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("text", ["foo", "foo:", ":29500", "foo:0", "foo:65536", "host:port", "a:1:2", "http://a:1"])
def test_what_is_no_address_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"form host:port .*Write rdzv_endpoint=\S+:29500"):
        find_endpoint(text)


def test_an_unknown_host_is_refused_within_the_patience_with_name_servers(monkeypatch) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match="'no-such-host.invalid' cannot be resolved"):
        find_endpoint("no-such-host.invalid:29500")
    monkeypatch.setattr(rendezvous, "RESOLVE_S", 0.1)
    monkeypatch.setattr(rendezvous.socket, "getaddrinfo", lambda *_, **__: time.sleep(1))
    with pytest.raises(ConfigError, match="no answer of the name server"):
        find_endpoint("slow.example:29500")
    assert time.monotonic() - began < 15


def test_a_name_server_that_does_not_answer_does_not_hold_the_exit() -> None:
    code = """
import time
from powerband.core.ranks import rendezvous
rendezvous.RESOLVE_S = 0.1
rendezvous.socket.getaddrinfo = lambda *_, **__: time.sleep(300)
try:
    rendezvous.find_endpoint("slow.example:29500")
except Exception as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "no answer of the name server" in ended.stdout


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", socket.gethostname()])
def test_the_first_process_at_an_address_of_this_machine_is_the_host(host: str) -> None:
    text = f"{host}:{free_port()}"
    index, endpoint = find_meeting_place(text, -1, 0)
    assert index == 0 and endpoint.hosted_here
    with socket.create_server((endpoint.address, endpoint.port)):
        assert not find_meeting_place(text, -1, 0)[1].hosted_here


def test_an_address_without_a_host_is_named_early_and_given_up_late(monkeypatch, capsys) -> None:
    monkeypatch.setattr(rendezvous, "NOTICE_S", 0.1)
    monkeypatch.setattr(rendezvous, "_can_bind", lambda *_: False)
    with pytest.raises(ConfigError, match=r"Nothing answers at .*refused\) after 1 s"):
        find_meeting_place(f"127.0.0.1:{free_port()}", -1, 1.0)
    assert capsys.readouterr().err.count("Waiting for") == 1


def test_machines_meet_where_one_answers_and_at_the_next_endpoint_after_a_loss(monkeypatch) -> None:
    first, second, third = ports = [free_port() for _ in range(3)]
    text = ", ".join(f"127.0.0.1:{port}" for port in ports)
    assert find_meeting_place(text, -1, 0)[0] == 0
    with socket.create_server(("127.0.0.1", third)):
        assert find_meeting_place(text, -1, 0)[0] == 2, "the first machine returns to a run that meets at the third"
    assert find_meeting_place(text, 0, 0)[0] == 1, "a machine of the list takes over"
    monkeypatch.setattr(rendezvous, "_can_bind", lambda family, address, port: port in (0, first, third))
    monkeypatch.setattr(rendezvous, "STANDBY_S", 0.2)
    began = time.monotonic()
    assert find_meeting_place(text, 0, 5)[0] == 2 and time.monotonic() - began > 0.2, "the second one is lost too"
    with pytest.raises(ConfigError, match="Nothing answers"):
        find_meeting_place(f"127.0.0.1:{second}, 127.0.0.1:{third}", -1, 0.1)
    with pytest.raises(ConfigError, match="cannot be resolved"):
        find_meeting_place(f"127.0.0.1:{first}, no-such-host.invalid:1", -1, 0)


def test_a_machine_that_returns_hosts_no_meeting_while_its_network_comes_up(monkeypatch) -> None:
    first, second = free_port(), free_port()
    text = f"127.0.0.1:{first}, 127.0.0.1:{second}"
    monkeypatch.setattr(rendezvous, "_can_bind", lambda family, address, port: port in (0, first))
    answers = [OSError(errno.EHOSTUNREACH, "No route to host"), TimeoutError(), socket.socket()]

    def connect(*_: object) -> socket.socket:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(socket, "create_connection", connect)
    index, endpoint = find_meeting_place(text, -1, 0)
    assert index == 1 and not endpoint.hosted_here and not answers
    monkeypatch.setattr(rendezvous, "STANDBY_S", 0.1)
    answers += [OSError(errno.EHOSTUNREACH, "No route to host") for _ in range(9)]
    assert find_meeting_place(text, -1, 0)[0] == 0, "no other machine is there"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_interface_of_an_address() -> None:
    assert rendezvous.interface_of("127.0.0.1") == "lo" and rendezvous.interface_of("192.0.2.1") == ""


def machine(folder: Path, port: int, run_dir: Path, *more: str) -> subprocess.Popen:
    """A launcher as on one machine of two, with one rank."""
    folder.mkdir(exist_ok=True)
    arguments = (
        "gym env_id=CartPole-v1 algo=ppo ppo.hidden=16 shared_trunk=true on_policy.num_envs=4 num_steps=16".split()
    )
    arguments += "minibatches=2 env_steps=256 gpus=none threads=1 num_workers=0 tensorboard=false nnodes=2".split()
    arguments += [f"run_dir={run_dir}", f"rdzv_endpoint=127.0.0.1:{port}", *more]
    drop = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "powerband", "train", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_machines_with_a_common_folder_train_and_without_it_storage_shared_is_refused(tmp_path: Path) -> None:
    """Two launchers on this machine. With a relative run_dir, each has a folder of its own, as on private disks."""
    common, port = tmp_path / "run", free_port()
    both = [machine(tmp_path / name, port, common) for name in ("a", "b")]
    printed = [process.communicate(timeout=150)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert (common / "checkpoints" / "256" / "rank1.json").exists()
    assert not any("Traceback" in text for text in printed)

    private = [machine(tmp_path / name, port, Path("own"), "storage=shared") for name in ("a", "b")]
    printed = [process.communicate(timeout=150)[0] for process in private]
    assert [process.returncode for process in private] == [2, 2], printed
    assert all("is not the same folder as" in text and "Traceback" not in text for text in printed), printed
    assert not (tmp_path / "a" / "own").exists() and not (tmp_path / "b" / "own").exists()
