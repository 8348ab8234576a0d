"""Local page: serves a page on the loopback address, to people on this machine who know a random token.

A page of another site can send requests to a local server. It does not know the token, and its requests have another
Host header even if it makes its own name point to this machine (DNS rebinding). Token, Host and Origin are checked for
each request. The content security policy lets the page load and contact nothing but this server.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from powerband.core.errors import ConfigError

HOST = "127.0.0.1"
TIMEOUT_S = 30
"""Seconds after which a connection without a request is closed."""
MAX_SIZE_DIGITS = 12
"""Largest number of digits of a Content-Length header."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page loads nothing from elsewhere, and no other page shows it."""


@dataclass(frozen=True)
class Routes:
    """What a page serves. A path is the part of an address after the token, such as ``page.js``; "" is the page.

    `get` and `post` are called by one thread at a time. They return a JSON value, or None for an unknown path. They
    raise ConfigError or ValueError for an invalid request; the answer is then status 400 with the message as ``error``.

    Attributes:
        files: Path -> (media type, content) of files.
        get: Function (path) -> JSON value, for paths that are no files.
        post: Function (path, JSON object of the request) -> JSON value.
        max_bytes: Largest body of a request.
        end: Path of the request that ends the page after its answer; empty if there is none.
    """

    files: Mapping[str, tuple[str, bytes]]
    get: Callable[[str], Any]
    post: Callable[[str, dict[str, Any]], Any]
    max_bytes: int
    end: str = ""


def page_files(package: str) -> dict[str, tuple[str, bytes]]:
    """Returns ``page.html``, ``page.js`` and ``page.css`` of a package, as `Routes.files`."""
    types = {"page.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
    folder = resources.files(package)
    found = {name: (kind, folder.joinpath(name).read_bytes()) for name, kind in types.items()}
    return {"": found.pop("page.html"), **found}


class LocalPage(ThreadingHTTPServer):
    """HTTP server of one page on 127.0.0.1.

    Attributes:
        url: Address of the page, with the token.

    Args:
        routes: What the page serves.
        port: Port; 0 takes a free one.

    Raises:
        ConfigError: The port cannot be used.
    """

    daemon_threads = True

    def __init__(self, routes: Routes, port: int = 0) -> None:
        self.routes, self.token, self.lock = routes, secrets.token_urlsafe(24), threading.Lock()
        try:
            super().__init__((HOST, port), _Request)
        except OSError as error:
            raise ConfigError(
                f"port={port} cannot be used: {error.strerror}. Write another port, or port=0 for a free one."
            ) from None
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self.url = f"http://{HOST}:{self.server_port}/{self.token}/"

    def serve(self) -> None:
        """Prints the address, and serves the page until it ends or the user presses Ctrl-C."""
        port = self.server_port
        print(f"Open {self.url} in a browser on this machine. Ctrl-C ends.", flush=True)
        print(
            f"From another machine: ssh -L {port}:{HOST}:{port} USER@MACHINE, then open the same address.", flush=True
        )
        try:
            self.serve_forever()
        except KeyboardInterrupt:
            print()
        finally:
            self.server_close()
        print("The page is closed.", flush=True)


class _Request(BaseHTTPRequestHandler):
    """Answers one request. Responses are never cached."""

    server: LocalPage
    timeout = TIMEOUT_S
    protocol_version = "HTTP/1.1"
    server_version = "powerband"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers with a file or a JSON value."""
        path = self._allowed_path()
        if path is None:
            return
        if path in self.server.routes.files:
            self._answer(200, *self.server.routes.files[path])
        else:
            self._answer_json(lambda: self.server.routes.get(path))

    def do_POST(self) -> None:
        """Answers with a JSON value."""
        path = self._allowed_path()
        if path is None:
            return
        origin = self.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            self._refuse(403, "The request comes from another page.")
            return
        size, limit = self.headers.get("Content-Length", ""), self.server.routes.max_bytes
        valid = size.isascii() and size.isdigit() and len(size) <= MAX_SIZE_DIGITS
        if not valid or int(size) > limit:
            self._refuse(413, f"The request must state its size, at most {limit:,} bytes.")
            return
        content = self.rfile.read(int(size))

        def respond() -> Any:
            body = json.loads(content or b"{}")
            if not isinstance(body, dict):
                raise ConfigError("The request is not a JSON object. Reload the page.")
            return self.server.routes.post(path, body)

        self._answer_json(respond)
        if path and path == self.server.routes.end:  # after the answer, which the end of the process would cut off
            self.server.shutdown()

    def _allowed_path(self) -> str | None:
        """Returns the path after the token; None, after an answer, if host or token are not those of this server."""
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(403, "The Host header is not that of this machine.")
            return None
        token, slash, path = self.path.removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(403, "The address lacks the token that powerband has printed.")
            return None
        return path

    def _answer_json(self, respond: Callable[[], Any]) -> None:
        """Sends the value that `respond` returns, status 400 if it refuses the request, or 404 if it returns None."""
        status = 200
        try:
            with self.server.lock:
                value = respond()
        except (ValueError, RecursionError) as error:  # ConfigError is a ValueError
            status, value = 400, {"error": str(error)}
        if value is None:
            self._refuse(404, "This page does not exist.")
        else:
            self._answer(status, "application/json", json.dumps(value).encode())

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True  # the body of the request may not have been read
        self._answer(status, "text/plain", message.encode())

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        """Sends an answer with headers that forbid foreign content, caching and referrers."""
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            **({"Connection": "close"} if self.close_connection else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Prints nothing, because the address of a request has the token."""
