"""Connections: lets this process notice within seconds that a peer is gone without having closed its connections.

A machine that loses its power, or the network to it, closes nothing. The kernel would then try for 15 minutes. The
connections of torch's stores and of gloo are not accessible in Python, so they are found by their file descriptors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SILENCE_S = 15
"""Seconds without an answer of the peer's kernel after which a connection fails. A stopped process still answers."""
PROBE_S, SCAN_S = 5, 1.0
"""Seconds between two keep-alive probes of an idle peer, and between two searches for new connections."""
LOOPBACK = ("127.", "::1", "::ffff:127.")


def limit_silence(silence_s: int = SILENCE_S) -> int:
    """Makes the open TCP connections to other machines fail after `silence_s` seconds without an answer.

    Returns:
        The number of these connections; 0 without Linux.
    """
    found = 0
    for name in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found += _limit(int(name), silence_s)
    return found


def _limit(number: int, silence_s: int) -> bool:
    """Applies the limit to the socket with this file descriptor. False if it connects to no other machine by TCP."""
    duplicate = os.dup(number)
    try:
        connection = socket.socket(fileno=duplicate)
    except OSError:  # the number belongs to another file by now
        os.close(duplicate)
        return False
    with connection:
        return _limit_connection(connection, silence_s)


def _limit_connection(connection: socket.socket, silence_s: int) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    if str(connection.getpeername()[0]).startswith(LOOPBACK):
        return False
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * silence_s)
    return True


@contextmanager
def limited_silence() -> Iterator[None]:
    """Context in which a thread applies `limit_silence` to new connections too."""
    ended = threading.Event()

    def search() -> None:
        while not ended.wait(SCAN_S):
            with contextlib.suppress(OSError):  # too many open files at the moment
                limit_silence()

    thread = threading.Thread(target=search, name="connections", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
