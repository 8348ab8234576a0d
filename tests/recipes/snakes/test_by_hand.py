"""A game by hand: the snakes of the person, the terminal through a pty, and the page over HTTP and in Chromium."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.snakes.by_hand import terminal
from powerband.recipes.snakes.by_hand.browser import game_routes, play_in_browser
from powerband.recipes.snakes.by_hand.game import GameByHand
from powerband.recipes.snakes.by_hand.play import play_by_hand
from powerband.recipes.snakes.by_hand.terminal import SIZE, picture, play_in_terminal
from powerband.recipes.snakes.env.opponents import PolicyOpponent
from powerband.recipes.snakes.evaluation_options import Evaluation
from powerband.report.local_page import LocalPage

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
UP, DOWN, LEFT, RIGHT = range(4)


def straight() -> PolicyOpponent:
    """A policy whose snakes go straight on."""
    return PolicyOpponent(lambda obs: torch.zeros(obs.shape[:2], dtype=torch.int64), "features")


def game(human: tuple[int, ...] = (0,), seed: int = 3) -> GameByHand:
    return GameByHand(straight(), human, seed)


# -- game -------------------------------------------------------------------------------------------------------------


def test_a_snake_of_the_person_turns_goes_straight_on_and_does_not_reverse() -> None:
    ours = game()
    direction = ours.position()["directions"][0]
    ours.move({})
    assert ours.position()["directions"][0] == direction
    ours.move({0: direction ^ 1})
    assert ours.position()["directions"][0] == direction
    turned = LEFT if direction in (UP, DOWN) else UP
    ours.move({0: turned})
    assert ours.position()["directions"][0] == turned
    assert ours.position()["step_count"] == 3


def test_the_result_stays_until_a_new_game() -> None:
    ours = game(human=(0, 1, 2))
    for _ in range(250):
        ours.move({})
    last = ours.position()
    assert last["step_count"] <= 200 and last["result"] == ours.results[0] and len(ours.results) == 1
    ours.new()
    assert ours.position()["step_count"] == 0 and ours.position()["result"] is None


# -- terminal ---------------------------------------------------------------------------------------------------------


class Terminal:
    """A pseudo-terminal in which `play_in_terminal` runs in a thread."""

    def __init__(self, ours: GameByHand, moves_per_s: float, monkeypatch: pytest.MonkeyPatch, size=(80, 24)) -> None:
        self.master, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.saved = termios.tcgetattr(worker)
        self.worker = worker
        monkeypatch.setattr(sys, "stdin", os.fdopen(os.dup(worker), "r"))
        monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(worker), "w"))
        self.thread = threading.Thread(target=play_in_terminal, args=(ours, moves_per_s), daemon=True)
        self.thread.start()

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until(self, pattern: str, timeout_s: float = 60) -> str:
        """Reads what the game draws until a part of it matches `pattern`."""
        text, end = "", time.monotonic() + timeout_s
        while time.monotonic() < end:
            if select.select([self.master], [], [], 0.1)[0]:
                text += os.read(self.master, 65536).decode(errors="replace")
            if re.search(pattern, text):
                return text
        raise AssertionError(f"{pattern} is missing in {text[-2000:]!r}")


def test_arrow_keys_move_the_snake_in_a_terminal_which_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = game()
    direction = ours.position()["directions"][0]
    screen = Terminal(ours, 0, monkeypatch)
    assert "\x1b[?1049h" in screen.until("move 0 / 200")
    screen.press("\x1b[A" if direction in (LEFT, RIGHT) else "\x1b[C")
    screen.until("move 1 / 200")
    assert ours.position()["directions"][0] == (UP if direction in (LEFT, RIGHT) else RIGHT)
    screen.press("\x1b")
    screen.press("OD" if ours.position()["directions"][0] == UP else "OA")  # split, as over a slow line
    screen.until("move 2 / 200")
    screen.press("x")
    screen.press("q")
    screen.thread.join(20)
    assert not screen.thread.is_alive()
    assert "\x1b[?1049l" in screen.until(r"\[\?1049l")
    assert termios.tcgetattr(screen.worker) == screen.saved


def test_a_game_moves_by_itself_can_pause_and_ends_with_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = game()
    for _ in range(190):
        ours.move({})
    screen = Terminal(ours, 20, monkeypatch)
    screen.until("move 19[2-9]")
    screen.press("p")
    screen.until("paused")
    screen.press("p")
    screen.until("(won|lost|drawn): n new game", 120)
    screen.press("n")
    screen.until("move 0 / 200")
    screen.press("\x03")
    screen.thread.join(20)
    assert not screen.thread.is_alive()


def test_a_new_game_starts_with_a_full_interval_and_without_earlier_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = game()
    for _ in range(250):
        ours.move({})
    seconds, moves = 0.0, []
    pressed = iter([(50.0, ["\x1b[A"]), (100.0, ["n"]), (100.5, []), (101.0, []), (101.5, ["q"])])

    def read_keys(descriptor: int, timeout_s: float | None) -> list[str]:
        nonlocal seconds
        seconds, keys = next(pressed)
        return keys

    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: seconds))
    monkeypatch.setattr(terminal, "_read_keys", read_keys)
    monkeypatch.setattr(terminal, "_show", lambda text: None)
    monkeypatch.setattr(ours, "move", lambda wanted: moves.append((seconds, dict(wanted))))
    terminal._play(ours, 0, 1.0)
    assert moves == [(101.0, {})]


def test_a_small_terminal_and_a_pipe_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="ssh -t"):
        play_in_terminal(game(), 4)
    master, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 30, 0, 0))
    for name, mode in (("stdin", "r"), ("stdout", "w")):
        monkeypatch.setattr(sys, name, os.fdopen(os.dup(worker), mode))
    with pytest.raises(ConfigError, match="30 columns and 10 rows"):
        play_in_terminal(game(), 4)


def test_the_picture_fits_its_size() -> None:
    lines = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in picture(game((0, 1, 2)).position()).split("\n")]
    assert len(lines) <= SIZE[1] and all(len(line) <= SIZE[0] for line in lines[1:-1])
    assert "".join(lines).count("()") == 3 and "".join(lines).count("<>") == 3 and "".join(lines).count("* ") == 5


# -- browser ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def played() -> GameByHand:
    return game()


@pytest.fixture
def server(played: GameByHand) -> Iterator[LocalPage]:
    page = LocalPage(game_routes(played, 20))
    thread = threading.Thread(target=page.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield page
    page.shutdown()
    page.server_close()


def request(server: LocalPage, method: str, action: str, body: str = "", **headers: str) -> tuple[int, str, Any]:
    """Sends one request below the token. Returns status, body and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.request(method, action, body or None, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers
    connection.close()
    return found


def test_the_page_plays_over_http(server: LocalPage) -> None:
    path = f"/{server.token}/"
    status, page, headers = request(server, "GET", path)
    assert status == 200 and "<canvas" in page and 'data-moves-per-s="20"' in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert re.findall(r"(?:src|href)=\S+?>|https?://", page) == ['href="page.css">', 'src="page.js">']
    for name in ("page.css", "page.js"):
        status, text, _ = request(server, "GET", path + name)
        assert status == 200 and not re.findall(r"https?://|import ", text)
    status, text, _ = request(server, "POST", path + "state")
    position = json.loads(text)
    turned = UP if position["directions"][0] in (LEFT, RIGHT) else LEFT
    status, text, _ = request(server, "POST", path + "move", json.dumps({"wanted": {"0": turned}}))
    assert status == 200 and json.loads(text)["directions"][0] == turned and json.loads(text)["step_count"] == 1
    assert json.loads(request(server, "POST", path + "new")[1])["step_count"] == 0


def test_requests_without_the_token_or_from_other_hosts_are_refused(server: LocalPage, played: GameByHand) -> None:
    assert server.server_address[0] == "127.0.0.1" and len(server.token) >= 32
    assert request(server, "GET", "/")[0] == 403
    assert request(server, "POST", "/wrong/move")[0] == 403
    assert request(server, "POST", f"/{server.token}/state", Host="attacker.example")[0] == 403
    assert request(server, "GET", f"/{server.token}/etc/passwd")[0] == 404
    assert request(server, "POST", f"/{server.token}/other")[0] == 404
    assert played.position()["step_count"] == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("[]", 400),
        ('{"wanted": 3}', 400),
        ('{"wanted": {"0": 4}}', 400),
        ('{"wanted": {"1": 0}}', 400),
        ('{"wanted": {"x": 0}}', 400),
        ('{"wanted": {"0": true}}', 400),
        ("[" * 1000, 400),
        ("x" * 2000, 413),
    ],
)
def test_invalid_moves_are_refused(server: LocalPage, played: GameByHand, body: str, status: int) -> None:
    assert request(server, "POST", f"/{server.token}/move", body)[0] == status
    assert played.position()["step_count"] == 0


def test_a_used_port_is_refused_and_quit_ends_the_page(server: LocalPage, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="Write another port"):
        play_in_browser(game(), 4, server.server_address[1])
    options = Evaluation(play="browser", human="team", moves_per_s=0)
    rows: list[Any] = []
    thread = threading.Thread(target=lambda: rows.append(play_by_hand(straight(), Path("run"), options)), daemon=True)
    thread.start()
    printed, end = "", time.monotonic() + 60
    while "/\x20in a browser" not in printed and time.monotonic() < end:
        printed += capsys.readouterr().out
        time.sleep(0.02)
    _, _, host, token, _ = re.search(r"http://\S+", printed).group().split("/")  # type: ignore[union-attr]
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.request("POST", f"/{token}/quit")
    assert json.loads(connection.getresponse().read())["human"] == [0, 1, 2]
    thread.join(20)
    assert rows == [[]]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_a_button_that_is_pressed_during_a_move_is_not_lost() -> None:
    script = files("powerband.recipes.snakes.by_hand") / "page.js"
    command = ["node", str(Path(__file__).with_name("page_requests.mjs")), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert found == {"requests": ["state", "move", "new", "move", "quit"], "state": "ended"}


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_moves_the_snakes_in_chromium(server: LocalPage, played: GameByHand, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --virtual-time-budget=3000 --dump-dom"
    command = [CHROMIUM, *options.split(), f"--user-data-dir={tmp_path}", server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    step = re.search(r'data-step="(\d+)"', done.stdout)
    assert step and int(step.group(1)) > 2, done.stdout[-500:] + done.stderr[-500:]
    assert played.position()["step_count"] >= int(step.group(1))
    assert re.search(r'<h1 id="score">\S+ -?\d+ : -?\d+', done.stdout)
