"""Channel: commands and replies between the training process and a worker process. This file imports no torch."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

CREATE, BIND, RESET, REPLAY, RESTORE, STATISTICS = b"M", b"B", b"R", b"P", b"S", b"f"
STEP, CLOSE = b"s", b"c"
"""Commands: create the environments, bind the shared memory, reset, replay episodes, restore after a restart, return
statistics; step, close."""
DONE, EPISODE_ENDED, CREATED, STATISTICS_REPLY, FAILED = b"k", b"e", b"D", b"F", b"E"
"""Replies. `EPISODE_ENDED` answers a step in which an episode ended; `FAILED` carries an `EnvError`."""
FAILURE_NOTICE = b"N"
"""Message that precedes a reply and carries a failure that the worker has repaired."""


class Channel:
    """One end of a stream socket that carries commands and replies between the training process and a worker.

    A message is a lower-case byte alone, or an upper-case byte with a payload of Python values.

    Args:
        sock: Connected stream socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: bytes, payload: Any = None) -> None:
        """Sends a message; the payload of a lower-case byte is ignored."""
        if message.islower():
            self.sock.sendall(message)
        else:
            data = pickle.dumps(payload)
            self.sock.sendall(message + struct.pack("<Q", len(data)) + data)

    def recv(self) -> tuple[bytes, Any]:
        """Waits for a message and returns its byte and its payload; the payload of a lower-case byte is None.

        Raises:
            EOFError: The other process has ended.
        """
        message = self._exactly(1)
        if message.islower():
            return message, None
        # The other end of the socket pair is a child or the parent of this process; nobody else can write to it.
        return message, pickle.loads(self._exactly(struct.unpack("<Q", self._exactly(8))[0]))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data
