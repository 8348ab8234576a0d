"""Reads from /proc at which addresses processes listen."""

from __future__ import annotations

import os
import re
from pathlib import Path

LISTEN = "0A"
LOOPBACK = ("0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F")
"""127.0.0.1, ::1 and 127.0.0.1 as an IPv6 address, as /proc writes them."""


def listening_addresses(pids: list[int]) -> list[str]:
    """Addresses, as /proc writes them, at which the processes `pids` listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
            except FileNotFoundError:  # closed meanwhile
                continue
    found = []
    for family in ("tcp", "tcp6"):
        table = Path(f"/proc/net/{family}")
        for row in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = row.split()
            if fields[3] == LISTEN and fields[9] in inodes:
                found.append(fields[1].partition(":")[0])
    return found


def check_on_loopback(pids: list[int], at_least: int) -> None:
    """Fails if one of the processes listens at another address than loopback, or if they have too few sockets."""
    if Path("/proc/net/tcp").exists():
        found = listening_addresses(pids)
        assert len(found) >= at_least, (pids, found)
        assert set(found) <= set(LOOPBACK), found
