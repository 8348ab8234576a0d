"""Browser: serves a page on the loopback address on which a person plays against a policy.

The page has no external resource. Every address contains a random token, and a request without it, or with the name of
another host, is refused. The page asks for each move, so the game pauses while the page is closed.
"""

from __future__ import annotations

import json
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Lock
from typing import Any

from powerband.core.errors import ConfigError
from powerband.recipes.snakes.by_hand.game import GameByHand

HOST = "127.0.0.1"
MAX_BODY = 1024
"""Largest request in bytes."""
TIMEOUT_S = 30
"""Seconds after which a connection without a request is closed."""


class GameServer(ThreadingHTTPServer):
    """HTTP server of one game on the loopback address.

    Attributes:
        url: Address of the page, with the token.

    Args:
        game: The game.
        moves_per_s: Moves per second; 0 waits for a key before each move.
        port: Port; 0 takes a free one.

    Raises:
        OSError: The port is in use.
    """

    daemon_threads = True

    def __init__(self, game: GameByHand, moves_per_s: float, port: int) -> None:
        super().__init__((HOST, port), _Request)
        self.game, self.lock, self.token = game, Lock(), secrets.token_urlsafe(24)
        self.hosts = {f"{name}:{self.server_address[1]}" for name in (HOST, "localhost")}
        self.url = f"http://{HOST}:{self.server_address[1]}/{self.token}/"
        self.nonce = secrets.token_urlsafe(12)
        text = files("powerband.recipes.snakes.by_hand").joinpath("page.html").read_text(encoding="utf-8")
        self.page = text.replace("NONCE", self.nonce).replace("MOVES_PER_S", str(moves_per_s)).encode()

    def answer(self, action: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Executes an action of the page: state, move, new or quit.

        Args:
            action: Last part of the address.
            body: JSON body. ``wanted`` maps a snake, as text, to a direction 0..3.

        Returns:
            The position; None for an unknown action.

        Raises:
            ValueError: `body` is invalid.
        """
        with self.lock:
            if action == "move":
                wanted = body.get("wanted", {})
                if not isinstance(wanted, dict) or any(type(move) is not int for move in wanted.values()):
                    raise ValueError("wanted must map a snake to a direction")
                moves = {int(snake): move for snake, move in wanted.items()}
                if not set(moves) <= set(self.game.human) or not set(moves.values()) <= set(range(4)):
                    raise ValueError("wanted must map a snake of the person to a direction 0..3")
                self.game.move(moves)
            elif action == "new":
                self.game.new()
            elif action not in ("state", "quit"):
                return None
            return self.game.position()


class _Request(BaseHTTPRequestHandler):
    """One request. Responses are never cached, and the page may load and contact nothing but this server."""

    server: GameServer
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        action = self._allowed()
        if action == "":
            self._send(200, "text/html; charset=utf-8", self.server.page)
        elif action is not None:
            self._send(404, "text/plain", b"Unknown address.\n")

    def do_POST(self) -> None:
        action = self._allowed()
        if action is None:
            return
        size = self.headers.get("Content-Length", "0")
        if not size.isdigit() or int(size) > MAX_BODY:
            self._send(413, "text/plain", b"The request is too large.\n")
            return
        try:
            body = json.loads(self.rfile.read(int(size)) or b"{}")
            if not isinstance(body, dict):
                raise ValueError("the body must be an object")
            answer = self.server.answer(action, body)
        except (ValueError, RecursionError) as error:
            self._send(400, "text/plain", f"{error}\n".encode())
            return
        if answer is None:
            self._send(404, "text/plain", b"Unknown address.\n")
        else:
            self._send(200, "application/json", json.dumps(answer).encode())
        if action == "quit":  # after the response, which would be lost at the end of the process
            self.server.shutdown()

    def _allowed(self) -> str | None:
        """Returns the part of the address after the token; None, after a response, if the request is refused."""
        _, token, action = [*self.path.split("/", 2), "", ""][:3]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._send(403, "text/plain", b"The address needs the token that powerband has printed.\n")
            return None
        if self.headers.get("Host") not in self.server.hosts:
            self._send(403, "text/plain", b"The page is served under 127.0.0.1 and localhost only.\n")
            return None
        return action

    def _send(self, status: int, kind: str, body: bytes) -> None:
        policy = f"default-src 'none'; connect-src 'self'; script-src 'nonce-{self.server.nonce}'; "
        policy += f"style-src 'nonce-{self.server.nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing, because the page asks several times per second."""


def play_in_browser(game: GameByHand, moves_per_s: float, port: int) -> None:
    """Serves the page until the person ends the game there or presses Ctrl-C here.

    Raises:
        ConfigError: The port is in use.
    """
    try:
        server = GameServer(game, moves_per_s, port)
    except OSError as error:
        raise ConfigError(f"port={port} cannot be opened ({error.strerror}). Write another port, or port=0.") from error
    print(f"Open {server.url} in a browser on this machine. Ctrl-C ends the game.", flush=True)
    port = server.server_address[1]
    print(f"From another machine: ssh -L {port}:{HOST}:{port} USER@MACHINE, then open the same address.", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
