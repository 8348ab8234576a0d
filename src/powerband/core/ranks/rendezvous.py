"""Rendezvous: checks the address at which the machines of a run meet, and finds this machine's own address.

torch's launcher guesses from host names whether a machine hosts the rendezvous. Many hosts resolve their own name to a
loopback address, so the guess fails, and the launchers wait for minutes. Here the addresses themselves decide.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError

ENDPOINT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/]+)):(?P<port>[0-9]{1,5})", re.ASCII)
RESOLVE_S, NOTICE_S, CONNECT_S = 10.0, 15.0, 2.0
"""Time limits in seconds: to resolve a host name, to report that nothing answers, and of one connection attempt."""
STANDBY_S = 10.0
"""Seconds for which a machine asks again before it hosts the rendezvous itself, if another one on the list neither
answers nor refuses the connection. The network of a machine that returns may just have come up."""
SIOCGIFADDR = 0x8915
"""Request of Linux for the IPv4 address of an interface."""
ALONE = ("localhost", "127.0.0.1", "::1")
"""Hosts with which all "machines" of a run are on this one, for tests."""
OTHER_NETWORK = "192.0.2.1"
"""An address that no machine has (RFC 5737). The route to it names this machine's own address; nothing is sent."""


@dataclass(frozen=True)
class Endpoint:
    """Address of the rendezvous, at which the launchers of all machines of a run meet.

    Attributes:
        host, port: Host and port as the user wrote them.
        address: Numeric address of the host.
        hosted_here: True if this process must host the rendezvous.
        own_address: Address of this machine for the other machines.
    """

    host: str
    port: int
    address: str
    hosted_here: bool
    own_address: str

    def __str__(self) -> str:
        return _joined(self.host, self.port)

    @property
    def numeric(self) -> str:
        """The endpoint as "address:port" with the numeric address, as torch's launcher expects it."""
        return _joined(self.address, self.port)


def find_endpoint(text: str) -> Endpoint:
    """Parses one endpoint of ``rdzv_endpoint``, a text host:port, and finds the numeric address of the host.

    Raises:
        ConfigError: `text` is not of the form host:port, or the host cannot be resolved.
    """
    match = ENDPOINT.fullmatch(text)
    if not match or not 1 <= int(match["port"]) <= 65535:
        name = text if re.fullmatch(r"[\w.-]+", text) else "HOST"
        raise ConfigError(
            f"rdzv_endpoint={shortened(text)} is not an address of the form host:port with a port from 1 to 65535. "
            f"Write rdzv_endpoint={shortened(name)}:29500 on all machines."
        )
    host, port = match["v6"] or match["host"], int(match["port"])
    family, address = _resolved(host, port)
    here = _can_bind(family, address, 0)
    own = host if host in ALONE else _own_address(family, address)
    return Endpoint(host, port, address, here and _can_bind(family, address, port), own)


def find_meeting_place(text: str, lost: int, patience_s: float) -> tuple[int, Endpoint]:
    """Chooses one of the endpoints of ``rdzv_endpoint``, and waits until it answers, unless this process must host it.

    An endpoint that answers is used, because the other machines are there. Otherwise the first one becomes the meeting
    place. After its loss this is the following one; and if that does not answer either, the next one. A machine that
    returns to a run must not host a meeting of its own: at the start it therefore hosts one only if all other machines
    refuse the connection, or do not answer for `STANDBY_S` seconds.

    Args:
        text: The setting, one or several host:port separated by commas.
        lost: Index of the endpoint that was lost; -1 at the start of a run.
        patience_s: Seconds to wait before the error. After 15 seconds the function prints a notice.

    Returns:
        The index of the endpoint, and the endpoint. `Endpoint.hosted_here` is True if this process must host it.

    Raises:
        ConfigError: An endpoint is not of the form host:port, or cannot be resolved at the start; or none answers
            within `patience_s` seconds.
    """
    texts = text.split(",")
    order = [(lost + 1 + position) % len(texts) for position in range(len(texts))]
    known = {index: find_endpoint(texts[index].strip()) for index in order if lost < 0}
    began, noticed = time.monotonic(), False
    while True:
        own, uncertain, reasons = None, False, []
        for position, index in enumerate(order):
            try:
                endpoint = known.pop(index, None) or find_endpoint(texts[index].strip())
            except ConfigError as error:  # the name of a lost machine
                reasons.append(str(error))
                continue
            if not endpoint.hosted_here:
                try:
                    socket.create_connection((endpoint.address, endpoint.port), CONNECT_S).close()
                    return index, endpoint
                except OSError as error:
                    uncertain |= lost < 0 and not isinstance(error, ConnectionRefusedError)
                    reasons.append(f"{endpoint} ({endpoint.address}: {error.strerror or 'no answer'})")
            elif own is None and (position == 0 or (lost >= 0 and time.monotonic() - began > position * STANDBY_S)):
                own = index, endpoint
        waited = time.monotonic() - began
        if own is not None and (not uncertain or waited > STANDBY_S):
            return own
        where = f"Nothing answers at rdzv_endpoint={', '.join(reasons) or text}"
        host = texts[order[0]].strip().rpartition(":")[0]
        fix = f"Start the same command on {host}, and check that this machine may connect to its port."
        if own is None and waited > patience_s:
            raise ConfigError(f"{where} after {waited:.0f} s. {fix}")
        if own is None and waited > NOTICE_S and not noticed:
            noticed = True
            print(f"powerband: {where}. {fix} Waiting for {patience_s / 60:.0f} min.", file=sys.stderr, flush=True)
        time.sleep(0.5)


def interface_of(address: str) -> str:
    """Returns the network interface that has an IPv4 address of this machine; "" if none has it (Linux only)."""
    if sys.platform != "linux":
        return ""
    import fcntl

    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """Returns the address family and the numeric address of a host; waits at most RESOLVE_S for the name server."""
    answer: Future = Future()

    def resolve() -> None:
        try:
            answer.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    # The exit of the process waits for the threads of an executor, but not for this one.
    threading.Thread(target=resolve, name="name server", daemon=True).start()
    try:
        found = answer.result(RESOLVE_S)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = getattr(error, "strerror", "") or "no answer of the name server"
        raise ConfigError(
            f"rdzv_endpoint: the host '{shortened(host)}' cannot be resolved on this machine ({reason}). Write a "
            f"name or an address of one of the machines that all of them can resolve."
        ) from error
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, str(address[0])


def _can_bind(family: socket.AddressFamily, address: str, port: int) -> bool:
    """True if this machine has the address and, unless `port` is 0, no process uses the port."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def _own_address(family: socket.AddressFamily, endpoint: str) -> str:
    """Returns the address from which this machine reaches the endpoint, or other networks if it is a loopback address.

    Without any network the run is on this machine alone, and the loopback address is right.
    """
    own = "localhost"
    for kind, target in ((family, endpoint), (socket.AF_INET, OTHER_NETWORK)):
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))
            except OSError:
                continue
            own = str(probe.getsockname()[0])
        if not own.startswith("127.") and own != "::1":
            return own
    return own
