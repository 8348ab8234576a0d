"""Disturbed link: relays the frames between two network devices with a delay and random losses (Linux, root).

    python disturbed_link.py FIRST SECOND --delay-s 0.03 --loss 0.1

It needs packet sockets only, where ``tc netem`` needs a module that many kernels do not have. Only frames from FIRST to
SECOND are disturbed, those of the other direction pass at once.
"""

from __future__ import annotations

import argparse
import heapq
import random
import select
import socket
import time

ALL_PROTOCOLS, SOL_PACKET, VIRTIO_HEADER, IGNORE_OUTGOING = 3, 263, 15, 23
"""Constants of `packet(7)`. The header of virtio says which checksums and segments the kernel leaves to the device."""
LONGEST = 1 << 17
"""Bytes that one frame can have, before its segmentation."""


def packet_socket(device: str) -> socket.socket:
    """Returns a socket that receives all frames which arrive at a device, and sends frames from it."""
    result = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    result.setsockopt(SOL_PACKET, VIRTIO_HEADER, 1)
    result.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    result.bind((device, 0))
    return result


def relay(first: socket.socket, second: socket.socket, delay_s: float, loss: float, rng: random.Random) -> None:
    """Relays frames until the process is ended.

    Args:
        first, second: Sockets of the devices.
        delay_s: Seconds that each frame from `first` waits.
        loss: Share of the frames from `first` that are lost.
        rng: Decides which frames are lost.
    """
    waiting: list[tuple[float, int, bytes]] = []
    number = 0
    while True:
        left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for source in select.select([first, second], [], [], left_s)[0]:
            frame = source.recv(LONGEST)
            if source is second:
                send(first, frame)
            elif rng.random() >= loss:
                number += 1
                heapq.heappush(waiting, (time.monotonic() + delay_s, number, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            send(second, heapq.heappop(waiting)[2])


def send(device: socket.socket, frame: bytes) -> None:
    """Sends a frame; a device that is down or full loses it, as a network does."""
    try:
        device.send(frame)
    except OSError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0, help="share of the frames, 0 to 1")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sockets = packet_socket(options.first), packet_socket(options.second)
    print("ready", flush=True)
    relay(*sockets, options.delay_s, options.loss, random.Random(options.seed))


if __name__ == "__main__":
    main()
