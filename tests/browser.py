"""Browser: a headless Chromium, which a test controls by the DevTools protocol over two pipes."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Browser:
    """One tab. Use it as a context manager; a test without Chromium is skipped.

    Args:
        profile: Empty folder for the browser's files.
    """

    def __init__(self, profile: Path) -> None:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = f"--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir={profile}"
        command = f'exec "{found}" {options} --remote-debugging-pipe about:blank 3<&{to_browser} 4>&{from_browser}'
        with (profile / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", command], pass_fds=(to_browser, from_browser), stdout=log, stderr=log
            )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._buffer, self._session = 0, b"", ""
        self.requests: list[str] = []
        """Addresses that the page has requested."""

    def __enter__(self) -> Browser:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Network.enable")
        self.call("Page.enable")
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + 60
        while True:
            answer = self._receive(limit)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, limit - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 2**16)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message

    def evaluate(self, script: str) -> Any:
        """Returns the value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, script: str, seconds: float = 60) -> Any:
        """Evaluates an expression until its value is true, and returns the value."""
        limit = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            assert time.monotonic() < limit, f"{script} stayed {value!r}"
            time.sleep(0.05)
        return value

    def drag(self, selector: str, points: list[tuple[float, float]]) -> None:
        """Presses the mouse at the first of the points, which count from the corner of an element, and moves it."""
        box = self.evaluate(
            f"(() => {{ const b = document.querySelector('{selector}'); b.scrollIntoView(); "
            "const r = b.getBoundingClientRect(); return [r.left, r.top]; })()"
        )
        for number, (x, y) in enumerate(points):
            kind = "mousePressed" if number == 0 else "mouseMoved"
            place = {"x": box[0] + x, "y": box[1] + y, "button": "left", "buttons": 1}
            self.call("Input.dispatchMouseEvent", type=kind, clickCount=int(number == 0), **place)
        self.call(
            "Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, x=box[0] + x, y=box[1] + y
        )
