"""What children of the doctor may do: answer, raise, crash, hang, print, start others; and ranks that die or hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def answer(*words: object) -> list[object]:
    print("simulators print")
    return [*words, os.environ.get("DOCTOR_TEST"), os.environ.get("HOME")]


def raises(*words: object) -> None:
    raise RuntimeError("the license\n   has expired")


def unprintable(*words: object) -> None:
    class EGLError(Exception):
        def __str__(self) -> str:
            raise ImportError("sys.meta_path is None")

    error = EGLError()
    error.err, error.baseOperation = 0x3003, unprintable
    raise error


def crash(*words: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves(*words: object) -> None:
    os._exit(3)


def hang(*words: object) -> None:
    """Hangs, and has a child that hangs; both must be gone."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    print("grandchild", child.pid, flush=True)
    time.sleep(300)


def asks(*words: object) -> None:
    input("Where is the data set? ")


def not_finite(*words: object) -> dict[str, object]:
    return {"steps_per_s": 10.0, "start_s": 0.1, "not_finite": True}


def blank_picture(*words: object) -> dict[str, object]:
    return frame(renderer="Fake GPU", blank=True)


def hardware_picture(*words: object) -> dict[str, object]:
    return frame(renderer="NVIDIA H200/PCIe/SSE2", blank=False)


def picture_of_device(*words: object) -> dict[str, object]:
    return frame(renderer=f"device {os.environ['MUJOCO_EGL_DEVICE_ID']} of NVIDIA", blank=False)


def frame(renderer: str, blank: bool) -> dict[str, object]:
    rates = {"frames_per_s": 900.0, "plain_frames_per_s": 4000.0, "start_s": 0.2}
    return {"vendor": "Fake", "renderer": renderer, "version": "4.6", "blank": blank, **rates}


RANK = f"import sys; sys.path.insert(0, {HERE!r}); import faulty; faulty.rank("
"""Program of a rank; to be completed by "mode") ."""


def rank(mode: str) -> None:
    """A rank that does what `mode` says where its number is 1, and waits for it where it is 0."""
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
