"""A local page answers requests of this machine that know its token, one at a time, and refuses all others."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from powerband.core.errors import ConfigError
from powerband.report.local_page import POLICY, LocalPage, Routes

BUSY: list[bool] = []


def answer(path: str, body: dict[str, Any]) -> Any:
    if path == "slow":
        assert not BUSY, "two requests at a time"
        BUSY.append(True)
        time.sleep(0.05)
        BUSY.clear()
    if path == "wrong":
        raise ConfigError("The value is not valid.")
    return {"path": path, **body} if path in ("slow", "echo", "end") else None


@pytest.fixture
def page() -> Iterator[LocalPage]:
    files = {"": ("text/html", b"<p>page"), "page.js": ("text/javascript", b"1")}
    with LocalPage(Routes(files, lambda path: [1] if path == "list" else None, answer, 100, end="end")) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(page: LocalPage, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, bytes, Any]:
    """Sends a request for a path below the token. Returns status, content and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=20)
    connection.request(method, f"/{page.token}/{path}", body, headers)
    found = connection.getresponse()
    result = found.status, found.read(), found.headers
    connection.close()
    return result


def test_files_and_values_are_served_and_never_cached(page: LocalPage, capfd: pytest.CaptureFixture) -> None:
    status, content, headers = ask(page, "GET", "")
    assert (status, content, headers["Content-Type"]) == (200, b"<p>page", "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"] == POLICY and "'self'" in POLICY and "default-src 'none'" in POLICY
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    assert ask(page, "GET", "page.js")[1] == b"1" and ask(page, "GET", "list")[1] == b"[1]"
    assert json.loads(ask(page, "POST", "echo", '{"a": 1}')[1]) == {"path": "echo", "a": 1}
    for method, path in (("GET", "other"), ("POST", "other"), ("GET", "../secret"), ("POST", "")):
        assert ask(page, method, path, "{}" if method == "POST" else None)[0] == 404
    assert "".join(capfd.readouterr()) == "", "the address has the token, and is not printed"


def test_other_hosts_pages_and_tokens_are_refused(page: LocalPage) -> None:
    assert page.server_address[0] == "127.0.0.1" and len(page.token) >= 32
    port = page.server_port
    for host in ("attacker.example", f"attacker.example:{port}", "127.0.0.1", ""):
        assert ask(page, "POST", "echo", "{}", Host=host)[0] == 403
    for origin in ("http://attacker.example", "null", f"https://127.0.0.1:{port}", ""):
        assert ask(page, "POST", "echo", "{}", Origin=origin)[0] == 403
    assert ask(page, "POST", "echo", "{}", Origin=f"http://127.0.0.1:{port}", Host=f"localhost:{port}")[0] == 200
    for path in ("/", f"/{page.token}", f"/{page.token[:-1]}/", "//", "/%C3%A9/"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", path)
        assert connection.getresponse().status == 403
        connection.close()


@pytest.mark.parametrize(
    ("body", "status"), [("[]", 400), ("{", 400), ("[" * 99, 400), ("\u00e9", 400), ('{"a": "' + 100 * "x" + '"}', 413)]
)
def test_bodies_that_are_no_objects_or_too_large_are_refused(page: LocalPage, body: str, status: int) -> None:
    assert ask(page, "POST", "echo", body)[0] == status


@pytest.mark.parametrize("size", [b"\xb2", b"-1", b"1e3", b"+1", b"", b"9" * 5000])
def test_sizes_that_are_no_numbers_are_refused(page: LocalPage, size: bytes) -> None:
    with socket.create_connection(("127.0.0.1", page.server_port), timeout=20) as connection:
        host = f"127.0.0.1:{page.server_port}".encode()
        request = f"POST /{page.token}/echo HTTP/1.1".encode()
        connection.sendall(request + b"\r\nHost: " + host + b"\r\nContent-Length: " + size + b"\r\n\r\n")
        assert b" 413 " in connection.recv(4096)


def test_a_refusal_has_its_reason_and_requests_take_turns(page: LocalPage) -> None:
    status, content, _ = ask(page, "POST", "wrong", "{}")
    assert status == 400 and json.loads(content) == {"error": "The value is not valid."}
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(ask(page, "POST", "slow", "{}")[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [200] * 4


def test_a_used_port_is_refused_and_a_request_ends_the_page(
    page: LocalPage, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"port={page.server_port} cannot be used: .*Write another port"):
        LocalPage(page.routes, page.server_port)
    other = LocalPage(page.routes)
    thread = threading.Thread(target=other.serve, daemon=True)
    thread.start()
    assert json.loads(ask(other, "POST", "end", "{}")[1]) == {"path": "end"}
    thread.join(20)
    assert not thread.is_alive()
    printed = capsys.readouterr().out
    assert f"Open {other.url} in a browser" in printed and "The page is closed." in printed
