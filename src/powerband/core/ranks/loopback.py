"""Loopback: ranks that are all on one machine meet on its loopback interface, which no other machine can reach.

torch's store listens on all interfaces, without a password, and gloo on the address of the host name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from datetime import timedelta

import torch.distributed as dist

ADDRESS = "127.0.0.1"
INTERFACES = ("lo", "lo0")
"""Names of the loopback interface: Linux, macOS."""


def is_one_machine(environment: MutableMapping[str, str] = os.environ) -> bool:
    """True if a launcher has started all ranks of the run on this machine."""
    return environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE")


def keep_gloo_on_loopback(environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes gloo listen on the loopback interface, unless the user has chosen an interface."""
    own = [name for _, name in socket.if_nameindex() if name in INTERFACES]
    if own:
        environment.setdefault("GLOO_SOCKET_IFNAME", own[0])


def loopback_store(rank: int, world_size: int, port: int, timeout: timedelta) -> dist.Store:
    """Creates the store at which the ranks of one machine meet. Rank 0 hosts it, on the loopback interface.

    Args:
        rank: Index of this rank.
        world_size: Number of ranks.
        port: Port of the store, MASTER_PORT.
        timeout: Time limit of its operations.

    Raises:
        OSError: Another process uses the port.
    """
    if rank:
        return dist.TCPStore(ADDRESS, port, world_size, is_master=False, timeout=timeout)
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((ADDRESS, port))
    listening.listen()
    return dist.TCPStore(
        ADDRESS,
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),  # the store closes it
    )
