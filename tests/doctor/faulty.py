"""Functions for the doctor's subprocesses that return, raise, crash, hang, print or start processes; faulty ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def answer(*arguments: object) -> list[object]:
    print("simulators print")
    return [*arguments, os.environ.get("DOCTOR_TEST"), os.environ.get("HOME")]


def raises(*arguments: object) -> None:
    raise RuntimeError("the license\n   has expired")


def unprintable(*arguments: object) -> None:
    class EGLError(Exception):
        def __str__(self) -> str:
            raise ImportError("sys.meta_path is None")

    error = EGLError()
    error.err, error.baseOperation = 0x3003, unprintable
    raise error


def crash(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves(*arguments: object) -> None:
    os._exit(3)


def hang(*arguments: object) -> None:
    """Hangs together with a child process; the doctor must kill both."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    print("grandchild", child.pid, flush=True)
    time.sleep(300)


def asks(*arguments: object) -> None:
    input("Where is the data set? ")


def not_finite(*arguments: object) -> dict[str, object]:
    return {"steps_per_s": 10.0, "start_s": 0.1, "not_finite": True}


def blank_image(*arguments: object) -> dict[str, object]:
    return render_result(renderer="Fake GPU", blank=True)


def hardware_image(*arguments: object) -> dict[str, object]:
    return render_result(renderer="NVIDIA H200/PCIe/SSE2", blank=False)


def image_of_device(*arguments: object) -> dict[str, object]:
    return render_result(renderer=f"device {os.environ['MUJOCO_EGL_DEVICE_ID']} of NVIDIA", blank=False)


def render_result(renderer: str, blank: bool) -> dict[str, object]:
    rates = {"frames_per_s": 900.0, "plain_frames_per_s": 4000.0, "start_s": 0.2}
    return {"vendor": "Fake", "renderer": renderer, "version": "4.6", "blank": blank, **rates}


RANK = f"import sys; sys.path.insert(0, {HERE!r}); import faulty; faulty.rank("
"""Program of a rank without its last argument and parenthesis; append ``"mode")``."""


def rank(mode: str) -> None:
    """Runs a rank: rank 1 fails as `mode` names, rank 0 waits for it."""
    with open(sys.argv[1], "a") as sink:
        sink.write('{"doing": "joining the group"}\n')
        if mode == "raise" and os.environ["RANK"] == "1":
            sink.write('{"error": "RuntimeError: no route to host"}\n')
    if os.environ["RANK"] == "1":
        if mode == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "raise":
            os._exit(1)
    if mode == "silent":
        os._exit(0)
    time.sleep(300)
