"""Child: a question that is answered in a process of its own, because the answer may crash, hang or print.

Simulators and drivers do all three when they are imported. The child writes its answer to a file, so that whatever it
prints does not matter, and it is ended together with everything it started when its time is over.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.core.children import end, ending


@dataclass(frozen=True)
class Outcome:
    """What came of a question.

    Attributes:
        value: The answer, a JSON value; None where there is none.
        problem: What went wrong, in words; "" where nothing did.
        kind: How it went wrong: "" (not at all), "error" (it raised), "crash", "hang".
        output: What the child printed, its end.
    """

    value: Any = None
    problem: str = ""
    kind: str = ""
    output: str = ""


def ask(
    function: str, words: list[Any], *, timeout_s: float, environment: Mapping[str, str | None] | None = None
) -> Outcome:
    """Calls ``module:function`` with `words` in a new process.

    Args:
        function: Its return value must be JSON.
        words: JSON values.
        timeout_s: Seconds after which the child is killed.
        environment: Variables that are different in the child; None unsets one.
    """
    changed = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    changed |= {name: value for name, value in (environment or {}).items() if value is not None}
    for name in [name for name, value in (environment or {}).items() if value is None]:
        changed.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        answer, output = Path(folder) / "answer.json", Path(folder) / "output"
        arguments = [function, json.dumps(words), str(answer)]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-c", "from powerband.doctor.child import main; main()", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=changed,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end(process)
        printed = output.read_text(errors="replace")[-4000:]
        if answer.exists():
            said = json.loads(answer.read_text())
            return Outcome(said.get("value"), said.get("error", ""), "error" if "error" in said else "", printed)
    if status is None:
        return Outcome(problem=f"gave no answer within {timeout_s:g} s and was ended", kind="hang", output=printed)
    return Outcome(problem=ending(status), kind="crash", output=printed)


def describe(error: BaseException) -> str:
    """Type and text of an error, on one line, also of one whose text cannot be made.

    PyOpenGL's EGLError looks its code up in a module it imports while it is printed; where that fails Python prints
    ``<exception str() failed>``. The code is in the error all the same.
    """
    try:
        text = " ".join(str(error).split())
    except Exception:
        from powerband.core.egl import ERRORS

        code = error.__dict__.get("err")
        text = ERRORS.get(code, f"EGL error {code!r}")
        operation = getattr(error.__dict__.get("baseOperation"), "__name__", "")
        text += f" in {operation}" if operation else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def main() -> None:
    """Main function of the child."""
    function, words, answer = sys.argv[1:4]
    module, name = function.split(":")
    try:
        said = {"value": getattr(importlib.import_module(module), name)(*json.loads(words))}
    except BaseException as error:
        said = {"error": describe(error)}
    part = Path(f"{answer}.part")
    part.write_text(json.dumps(said))
    part.rename(answer)
    sys.stdout.flush()
    os._exit(0)  # simulators and drivers crash while an interpreter ends, and the answer is given
