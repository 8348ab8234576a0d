"""Worker: the main function of a process that holds a group of environments, and how the parent talks to it.

No torch here: a worker imports numpy and its simulator only.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import runpy
import signal
import socket
import struct
import sys
import traceback
from typing import Any

from powerband.envs.group import EnvError, EnvGroup
from powerband.envs.slots import Layout, Slots

importing_main = False
"""True while a worker imports the user's script for the functions in it; that script must not start workers then."""


class Channel:
    """Words over a stream socket: a lower-case byte alone, or an upper-case byte and a payload of Python values."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, word: bytes, payload: Any = None) -> None:
        if word.islower():
            self.sock.sendall(word)
        else:
            data = pickle.dumps(payload)
            self.sock.sendall(word + struct.pack("<Q", len(data)) + data)

    def recv(self) -> tuple[bytes, Any]:
        """Waits for a word. Raises EOFError when the other side is gone."""
        word = self._exactly(1)
        if word.islower():
            return word, None
        # The other end of the socket pair is this process's own child or parent: nobody else can write to it.
        return word, pickle.loads(self._exactly(struct.unpack("<Q", self._exactly(8))[0]))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def serve(sock_fd: int, memory_fd: int, parent_pid: int, die_with_parent: bool) -> None:
    """Main function of a worker process: answers the parent until it says so or is gone."""
    # The parent decides when a run ends: a signal to the whole job must not take the environments away before it saves.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if die_with_parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG: also ends a worker that hangs in C code
        if os.getppid() != parent_pid:
            return
    channel = Channel(socket.socket(fileno=sock_fd))
    try:
        group = _make_group(channel, memory_fd)
        while group is not None:
            word, payload = channel.recv()
            if word == b"c":
                group.close()
                return
            if word == b"B":
                payload = _slots(payload, memory_fd)
            try:
                reply = group.answer(word, payload)
            except EnvError as error:
                reply = b"E", (str(error), error.facts)
            channel.send(*reply)
    except (EOFError, ConnectionError):
        return


def _make_group(channel: Channel, memory_fd: int) -> EnvGroup | None:
    _, order = channel.recv()
    try:
        if order["main"] is not None:
            _stand_in_for_main(*order["main"])
        group = EnvGroup(pickle.loads(order["makes"]), **order["place"])
    except EnvError as error:
        channel.send(b"E", (str(error), error.facts))
        return None
    except Exception as error:
        first = order["place"]["first_env"] + order["place"]["first_row"]
        refused = isinstance(error, (AttributeError, ImportError, ValueError))
        what = str(error) if refused else traceback.format_exc()
        facts = {"env_id": first, "doing": "make", "refused": refused}
        channel.send(b"E", (f"environment {first} could not be made: {what}", facts))
        return None
    group.tell = lambda fault: channel.send(b"N", fault)
    channel.send(b"D", group.spaces)
    return group


def _slots(fields: Layout, memory_fd: int) -> Slots:
    slots = Slots(fields, memory_fd)
    os.close(memory_fd)
    return slots


def _stand_in_for_main(name: str | None, path: str | None) -> None:
    """Makes functions of the user's own script importable: loads it as a module that is not ``__main__`` to itself."""
    global importing_main
    importing_main = True
    if name is not None:
        module = importlib.import_module(name)
        sys.modules["__main__"] = module
    else:
        names = runpy.run_path(path, run_name="__mp_main__")
        sys.modules["__main__"].__dict__.update(names)
    importing_main = False
