"""Server of the drawing page: answers requests on the loopback interface that know a random token.

A page of another site can send requests to a local server. It does not know the token, and its requests have another
Host header even if it makes its own name point to this machine (DNS rebinding). Both are checked for each request.
"""

from __future__ import annotations

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.drawing.walker import Walker

MAX_REQUEST_BYTES = 8 * 2**20
"""Largest body of a request; a page of 512 x 512 pixels has less than 1.5 MiB."""
FILES = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
"""Path after the token -> file and its type."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page loads nothing from elsewhere, and no other page shows it."""


class DrawingServer(ThreadingHTTPServer):
    """HTTP server on 127.0.0.1. `url` is its address, with the token.

    Args:
        walker: Agent that the page controls.
        port: Port; 0 takes a free one.

    Raises:
        ConfigError: The port is in use.
    """

    daemon_threads = True

    def __init__(self, walker: Walker, port: int = 0) -> None:
        self.walker, self.token, self.lock = walker, secrets.token_urlsafe(24), threading.Lock()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"port={port} cannot be used: {error.strerror}. Leave port out to take a free one."
            ) from None
        self.hosts = {f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}"}
        self.url = f"http://127.0.0.1:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: DrawingServer
    timeout = 30
    protocol_version = "HTTP/1.1"
    server_version = "powerband"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers with a file of the page, or with the plans."""
        path = self._path()
        if path in FILES:
            name, kind = FILES[path]
            self._answer(200, kind, resources.files(__package__).joinpath(name).read_bytes())
        elif path == "plans":
            self._answer_json(200, self.server.walker.describe())
        elif path is not None:
            self._refuse(404, "This page does not exist.")

    def do_POST(self) -> None:
        """Begins an episode (``start``), or executes an action (``step``)."""
        path = self._path()
        if path is None:
            return
        origin = self.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            self._refuse(403, "The request comes from another page.")
            return
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdigit()) or int(size) > MAX_REQUEST_BYTES:
            self._refuse(413, f"The request must state its size, at most {MAX_REQUEST_BYTES:,} bytes.")
            return
        content = self.rfile.read(int(size))
        try:
            request = json.loads(content or b"{}")
            if not isinstance(request, dict):
                raise ConfigError("The request is not a JSON object. Reload the page.")
            with self.server.lock:
                if path == "start":
                    self._answer_json(200, self.server.walker.start(request))
                elif path == "step":
                    self._answer_json(200, self.server.walker.step())
                else:
                    self._refuse(404, "This page does not exist.")
        except (ConfigError, ValueError, RecursionError) as error:
            self._answer_json(400, {"error": str(error)})

    def _path(self) -> str | None:
        """Returns the path after the token; None, after an answer, if host or token are not those of this server."""
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(403, "The Host header is not that of this machine.")
            return None
        token, slash, path = self.path.removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(403, "The address lacks the token that powerband has printed.")
            return None
        return path

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True  # the body of the request was not read
        self._answer(status, "text/plain", message.encode())

    def _answer_json(self, status: int, content: Any) -> None:
        self._answer(status, "application/json", json.dumps(content).encode())

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
