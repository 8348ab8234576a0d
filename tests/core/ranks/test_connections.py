"""Connections: which of them are limited, without a trace in the process."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from powerband.core.ranks import connections


@pytest.mark.skipif(sys.platform != "linux", reason="file descriptors of Linux")
def test_connections_to_other_machines_are_limited_and_no_others(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        before = len(os.listdir("/proc/self/fd"))
        connections.limit_silence(7)
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0, "on loopback"
        monkeypatch.setattr(connections, "LOOPBACK", ("nowhere",))
        assert connections.limit_silence(7) >= 1
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert len(os.listdir("/proc/self/fd")) == before
