"""Several machines on one: network namespaces that a bridge connects, with delays, losses and cuts (Linux, root).

Each machine has an own address and host name, but sees the same disk. Cutting its link and killing its processes is
what the others notice of a machine that has lost its power: no connection is closed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME")


def ip(*words: str) -> str:
    """Runs the command ``ip`` and returns what it prints. Raises CalledProcessError, or OSError without it."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Namespaces:
    """Network namespaces, one per machine.

    Args:
        count: Number of machines.

    Raises:
        OSError, subprocess.CalledProcessError: They cannot be made here, for example without root.
    """

    def __init__(self, count: int) -> None:
        self.names = [f"pb{os.getpid()}-{index}" for index in range(count)]
        self._hub = f"pb{os.getpid()}-hub"
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        for name in (self._hub, *self.names):
            ip("netns", "add", name)
        ip("-n", self._hub, "link", "add", "hub", "type", "bridge")
        ip("-n", self._hub, "link", "set", "hub", "up")
        for index, name in enumerate(self.names):
            port = f"port{index}"
            ip("-n", self._hub, "link", "add", port, "type", "veth", "peer", "name", "net0", "netns", name)
            ip("-n", self._hub, "link", "set", port, "master", "hub", "up")
            ip("-n", name, "address", "add", f"{self.address(index)}/24", "dev", "net0")
            for device in ("lo", "net0"):
                ip("-n", name, "link", "set", device, "up")

    @staticmethod
    def address(index: int) -> str:
        """Address of a machine."""
        return f"10.231.77.{index + 1}"

    def start(self, index: int, words: list[str], folder: Path) -> subprocess.Popen:
        """Starts powerband on a machine. Its output is added to the file ``out`` in `folder`, its working directory."""
        folder.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        named = ["unshare", "--uts", "sh", "-c", f'hostname machine{index}; exec "$@"', "sh"]
        command = ["ip", "netns", "exec", self.names[index], *named, sys.executable, "-m", "powerband", *words]
        with (folder / "out").open("a") as out:
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)

    def kill(self, index: int) -> None:
        """Kills all processes of a machine."""
        for pid in ip("netns", "pids", self.names[index]).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def link(self, index: int, state: str) -> None:
        """Cuts the link of a machine, or connects it again: "down" or "up"."""
        ip("-n", self._hub, "link", "set", f"port{index}", state)

    def lose(self, index: int) -> None:
        """Loses a machine as by a power failure: nobody is told."""
        self.link(index, "down")
        self.kill(index)
        while ip("netns", "pids", self.names[index]).split():
            time.sleep(0.05)

    @contextlib.contextmanager
    def disturbed(self, index: int, delay_s: float = 0.0, loss: float = 0.0) -> Iterator[None]:
        """Delays what a machine sends, and loses a share of its frames, within the context."""
        port, inner, outer = f"port{index}", f"inner{index}", f"outer{index}"
        relay = [sys.executable, str(Path(__file__).with_name("disturbed_link.py")), port, inner]
        command = ["ip", "netns", "exec", self._hub, *relay, f"--delay-s={delay_s}", f"--loss={loss}"]
        ip("-n", self._hub, "link", "add", inner, "type", "veth", "peer", "name", outer)
        ip("-n", self._hub, "link", "set", inner, "up")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
                ip("-n", self._hub, "link", "set", port, "nomaster")
                ip("-n", self._hub, "link", "set", outer, "master", "hub", "up")
                yield
            finally:
                process.kill()
                ip("-n", self._hub, "link", "del", inner)
                ip("-n", self._hub, "link", "set", port, "master", "hub")

    def close(self) -> None:
        """Kills what runs, and removes the namespaces."""
        for index, name in enumerate(self.names):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                self.kill(index)
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                ip("netns", "del", name)
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            ip("netns", "del", self._hub)
