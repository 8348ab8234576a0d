"""Loopback: where the ranks of one machine meet. tests/distributed checks the sockets of whole runs."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest

from distributed.listening import check_on_loopback
from powerband.core.ranks import loopback


def test_the_store_listens_on_loopback_and_a_client_reads_it() -> None:
    with socket.socket() as probe:
        probe.bind((loopback.ADDRESS, 0))
        port = probe.getsockname()[1]
    host = loopback.loopback_store(0, 2, port, timedelta(seconds=20))
    check_on_loopback([os.getpid()], at_least=1)
    client = loopback.loopback_store(1, 2, port, timedelta(seconds=20))
    host.set("a", "b")
    assert client.get("a") == b"b"
    with pytest.raises(OSError, match="in use"):
        loopback.loopback_store(0, 2, port, timedelta(seconds=20))


def test_an_interface_that_the_user_has_chosen_stays() -> None:
    environment = {"GLOO_SOCKET_IFNAME": "eth7"}
    loopback.keep_gloo_on_loopback(environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "eth7"}
    environment.clear()
    loopback.keep_gloo_on_loopback(environment)
    assert environment["GLOO_SOCKET_IFNAME"] in loopback.INTERFACES


def test_ranks_of_several_machines_are_distinguished_from_those_of_one() -> None:
    assert loopback.is_one_machine({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"})
    assert not loopback.is_one_machine({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"})
    assert not loopback.is_one_machine({"WORLD_SIZE": "4"})
